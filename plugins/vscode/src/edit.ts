/** Edits by instruction: a streamed preview beside the file, then the user decides. */

import * as vscode from "vscode";
import { preview, replacement } from "./changes";
import type { Session } from "./session";

const SCHEME = "agentspec-edit";
const READY_CONTEXT = "agentspec.editReady";

/** Shortest time between two refreshes of the preview. */
const REFRESH_MILLISECONDS = 100;

/** An edit on its way from the instruction to the user's decision. */
interface Pending {
  readonly document: vscode.TextDocument;
  readonly version: number;
  readonly shown: vscode.Uri;
  text: string;
  answer?: string;
}

/** One edit at a time; a new one discards the one before it. */
export class Edits implements vscode.TextDocumentContentProvider, vscode.Disposable {
  private readonly refreshes = new vscode.EventEmitter<vscode.Uri>();
  readonly onDidChange = this.refreshes.event;
  private pending: Pending | undefined;
  private count = 0;
  private readonly registration = vscode.workspace.registerTextDocumentContentProvider(SCHEME, this);

  constructor(private readonly session: Session) {}

  dispose(): void {
    this.registration.dispose();
    this.refreshes.dispose();
  }

  provideTextDocumentContent(uri: vscode.Uri): string {
    return this.pending?.shown.toString() === uri.toString() ? this.pending.text : "";
  }

  /**
   * Ask for a change of the active editor's selection, or of its whole file.
   *
   * @param instruction what to do; asked for when left out.
   */
  async start(instruction?: string): Promise<void> {
    const editor = vscode.window.activeTextEditor;
    if (!editor || editor.document.uri.scheme === SCHEME) {
      void vscode.window.showInformationMessage("agentspec: open the file that is to be edited first.");
      return;
    }
    const { document, selection } = editor;
    const what = selection.isEmpty ? "this file" : "the selected lines";
    const wanted = instruction ?? (await vscode.window.showInputBox({ title: `Edit ${what}`, prompt: "What to do" }));
    if (!wanted?.trim()) return;
    await this.discard();
    const before = document.getText();
    const shown = vscode.Uri.from({ scheme: SCHEME, path: document.uri.path, query: String(++this.count) });
    const pending: Pending = { document, version: document.version, shown, text: before };
    this.pending = pending;
    await vscode.commands.executeCommand("vscode.diff", document.uri, shown, `${name(document)}: ${wanted}`);
    const options = { location: vscode.ProgressLocation.Notification, title: `agentspec: ${wanted}`, cancellable: true };
    try {
      await vscode.window.withProgress(options, (_, token) => this.receive(pending, before, wanted, selection, token));
    } catch (error) {
      await this.close(pending);
      if ((error as Error).name !== "AbortError") {
        void vscode.window.showErrorMessage(`agentspec: ${(error as Error).message}`);
      }
      return;
    }
    if (this.pending !== pending) return;
    if (pending.text === before || (before.trim() && !pending.text.trim())) {
      await this.close(pending);
      const problem = pending.text === before ? "changed nothing" : "left nothing of the file; it was not changed";
      void vscode.window.showInformationMessage(`agentspec: the model ${problem}.`);
      return;
    }
    await vscode.commands.executeCommand("setContext", READY_CONTEXT, true);
    void this.decide(pending);
  }

  /** Put the edit into the file. */
  async apply(): Promise<void> {
    const pending = this.pending;
    if (!pending?.answer) return;
    if (pending.document.version !== pending.version) {
      void vscode.window.showWarningMessage("agentspec: the file has changed since; ask for the edit again.");
      return;
    }
    const change = replacement(pending.document.getText(), pending.text);
    const edit = new vscode.WorkspaceEdit();
    if (change) {
      const [start, end] = [pending.document.positionAt(change.start), pending.document.positionAt(change.end)];
      edit.replace(pending.document.uri, new vscode.Range(start, end), change.text);
    }
    const applied = await vscode.workspace.applyEdit(edit);
    await this.close(pending);
    if (applied) {
      await vscode.window.showTextDocument(pending.document);
      await this.session.feedback(pending.answer, true);
    }
  }

  /** Forget the edit. */
  async discard(): Promise<void> {
    const pending = this.pending;
    if (!pending) return;
    await this.close(pending);
    if (pending.answer) await this.session.feedback(pending.answer, false);
  }

  private async receive(
    pending: Pending,
    before: string,
    instruction: string,
    selection: vscode.Selection,
    token: vscode.CancellationToken,
  ): Promise<void> {
    const abort = new AbortController();
    token.onCancellationRequested(() => abort.abort());
    const client = await this.session.client();
    const place = this.session.place(pending.document);
    const request = {
      ...place,
      path: place.path ?? name(pending.document),
      content: before,
      instruction,
      selection: lines(selection),
    };
    const answer = client.edit(request, abort.signal);
    let streamed = "";
    let refreshed = 0;
    for (;;) {
      const next = await answer.next();
      if (this.pending !== pending) {
        abort.abort();
        return;
      }
      if (next.done) {
        pending.text = streamed;
        pending.answer = next.value;
        break;
      }
      streamed += next.value;
      if (Date.now() - refreshed < REFRESH_MILLISECONDS) continue;
      refreshed = Date.now();
      pending.text = preview(before, streamed);
      this.refreshes.fire(pending.shown);
    }
    this.refreshes.fire(pending.shown);
  }

  private async decide(pending: Pending): Promise<void> {
    const question = `agentspec: apply the edit to ${name(pending.document)}?`;
    const answer = await vscode.window.showInformationMessage(question, "Apply", "Discard");
    if (this.pending !== pending) return;
    if (answer === "Apply") await this.apply();
    else if (answer === "Discard") await this.discard();
  }

  private async close(pending: Pending): Promise<void> {
    if (this.pending !== pending) return;
    this.pending = undefined;
    await vscode.commands.executeCommand("setContext", READY_CONTEXT, false);
    const tabs = vscode.window.tabGroups.all.flatMap((group) => group.tabs);
    const ours = tabs.filter(
      ({ input }) => input instanceof vscode.TabInputTextDiff && input.modified.toString() === pending.shown.toString(),
    );
    await vscode.window.tabGroups.close(ours);
  }
}

function name(document: vscode.TextDocument): string {
  return document.uri.path.split("/").pop() ?? document.uri.path;
}

/** Lines of a selection from 1; one that ends before the first character of a line does not contain that line. */
function lines(selection: vscode.Selection): { start_line: number; end_line: number } | undefined {
  if (selection.isEmpty) return undefined;
  const { start, end } = selection;
  const last = end.character === 0 && end.line > start.line ? end.line : end.line + 1;
  return { start_line: start.line + 1, end_line: last };
}
