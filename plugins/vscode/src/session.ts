/** What all parts of the extension share: settings, the client, and where documents are. */

import * as vscode from "vscode";
import { Client, type Place, type State } from "./client";

const KEY_SECRET = "agentspec.key";
const KEY_VARIABLE = "AGENTSPEC_API_KEY";

/** One window's connection to the server. */
export class Session implements vscode.Disposable {
  private made: { url: string; key?: string; client: Client } | undefined;
  /** The client whose server answered when it was last asked for its state. */
  private answering: Client | undefined;
  private readonly registered = new Set<string>();
  private readonly changes = new vscode.EventEmitter<void>();
  /** Fires when something may have changed what the status bar shows. */
  readonly onDidChange = this.changes.event;

  constructor(
    private readonly secrets: vscode.SecretStorage,
    private readonly log: vscode.LogOutputChannel,
  ) {}

  dispose(): void {
    this.changes.dispose();
  }

  setting<Value>(name: string): Value {
    return vscode.workspace.getConfiguration("agentspec").get(name) as Value;
  }

  /** The client for the server that the settings name now. */
  async client(): Promise<Client> {
    const url = this.setting<string>("url");
    const key = (await this.secrets.get(KEY_SECRET)) ?? process.env[KEY_VARIABLE];
    if (this.made?.url !== url || this.made.key !== key) {
      this.made = { url, key, client: new Client(url, key) };
      this.registered.clear();
    }
    return this.made.client;
  }

  /**
   * What the server says of itself. A server that had not answered before is asked to index the workspace, so that it
   * does not matter whether it was started before the editor.
   */
  async state(): Promise<State> {
    const client = await this.client();
    let state: State;
    try {
      state = await client.state();
    } catch (error) {
      this.answering = undefined;
      throw error;
    }
    if (this.answering !== client) {
      this.answering = client;
      if (this.setting<boolean>("indexOnOpen")) {
        this.index().catch((error: Error) => this.log.info(`the workspace drafts nothing: ${error.message}`));
      }
    }
    return state;
  }

  async setKey(): Promise<void> {
    const key = await vscode.window.showInputBox({
      title: "API key of the agentspec server",
      prompt: "Kept in VS Code's secret storage. Leave it empty to forget the key.",
      password: true,
    });
    if (key === undefined) return;
    if (key) await this.secrets.store(KEY_SECRET, key);
    else await this.secrets.delete(KEY_SECRET);
    this.changes.fire();
  }

  /** Have every folder of the workspace indexed. */
  async index(): Promise<void> {
    const client = await this.client();
    for (const folder of vscode.workspace.workspaceFolders ?? []) {
      await client.register(folder.uri.fsPath);
      this.registered.add(folder.uri.fsPath);
    }
    this.changes.fire();
  }

  /** Where a document is; the repository only where the server indexes it. */
  place(document: vscode.TextDocument): Place {
    const folder = vscode.workspace.getWorkspaceFolder(document.uri);
    if (!folder || !this.registered.has(folder.uri.fsPath)) return {};
    return { path: vscode.workspace.asRelativePath(document.uri, false), repository: folder.uri.fsPath };
  }

  /** Tell the server what became of an answer; that it cannot be told is no trouble of the user's. */
  async feedback(id: string, accepted: boolean): Promise<void> {
    await (await this.client()).feedback(id, accepted).catch(() => undefined);
    this.changes.fire();
  }
}
