/** The extension: what VS Code calls, and what it calls up. */

import { copyFile, mkdir, readFile, writeFile } from "node:fs/promises";
import * as path from "node:path";
import * as vscode from "vscode";
import { Edits } from "./edit";
import { ACCEPTED_COMMAND, InlineProvider } from "./inlineProvider";
import { FILE_NAME, modelEntry, withEntry } from "./modelEntry";
import { Session } from "./session";
import { StatusBar } from "./status";

export function activate(context: vscode.ExtensionContext): void {
  const log = vscode.window.createOutputChannel("agentspec", { log: true });
  const session = new Session(context.secrets, log);
  const edits = new Edits(session);
  const command = (name: string, run: (...given: never[]) => unknown) =>
    vscode.commands.registerCommand(name, async (...given) => {
      try {
        await run(...(given as never[]));
      } catch (error) {
        void vscode.window.showErrorMessage(`agentspec: ${(error as Error).message}`);
      }
    });
  context.subscriptions.push(
    log,
    session,
    edits,
    new StatusBar(session),
    vscode.languages.registerInlineCompletionItemProvider({ pattern: "**" }, new InlineProvider(session, log)),
    command("agentspec.edit", (instruction?: unknown) =>
      edits.start(typeof instruction === "string" ? instruction : undefined),
    ),
    command("agentspec.applyEdit", () => edits.apply()),
    command("agentspec.discardEdit", () => edits.discard()),
    command("agentspec.index", () => session.index()),
    command("agentspec.openPage", async () => vscode.env.openExternal(vscode.Uri.parse((await session.client()).root))),
    command("agentspec.setKey", () => session.setKey()),
    command("agentspec.writeModelEntry", () => writeModelEntry(session, context)),
    command("agentspec.menu", showMenu),
    command(ACCEPTED_COMMAND, (id: string) => session.feedback(id, true)),
  );
}

async function showMenu(): Promise<void> {
  const commands = {
    "$(sparkle) Edit with agentspec": "agentspec.edit",
    "$(database) Index this workspace": "agentspec.index",
    "$(graph) Show the server at work": "agentspec.openPage",
    "$(comment-discussion) Add the model to VS Code's chat": "agentspec.writeModelEntry",
    "$(key) Set the server's API key": "agentspec.setKey",
  };
  const chosen = await vscode.window.showQuickPick(Object.keys(commands), { title: "agentspec" });
  if (chosen) await vscode.commands.executeCommand(commands[chosen as keyof typeof commands]);
}

/** Add the served model to the file of custom endpoints; what was there before is kept beside it. */
async function writeModelEntry(session: Session, context: vscode.ExtensionContext): Promise<void> {
  const client = await session.client();
  const state = await client.state();
  if (!state.model || !state.context_length) throw new Error("the engine is starting; try again shortly");
  const entry = modelEntry(client.root, state.model, state.context_length);
  // The user's settings folder holds globalStorage/<extension>.
  const file = path.join(path.dirname(path.dirname(context.globalStorageUri.fsPath)), FILE_NAME);
  const before = await readFile(file, "utf8").catch(() => "");
  let text: string;
  try {
    text = withEntry(before, entry);
  } catch (error) {
    const shown = await vscode.workspace.openTextDocument({ language: "json", content: JSON.stringify(entry, null, 2) });
    await vscode.window.showTextDocument(shown);
    throw new Error(`${file} cannot be read (${(error as Error).message}); paste this entry into it`);
  }
  if (text === before) {
    void vscode.window.showInformationMessage(`agentspec: ${file} has the model already.`);
    return;
  }
  await mkdir(path.dirname(file), { recursive: true });
  if (before) await copyFile(file, `${file}.before-agentspec`);
  await writeFile(file, text);
  await vscode.window.showTextDocument(vscode.Uri.file(file));
  void vscode.window.showInformationMessage(
    "agentspec: the model was added. If the server asks for a key, enter it in “Chat: Manage Language Models”.",
  );
}
