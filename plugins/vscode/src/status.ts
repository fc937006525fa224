/** The status bar: is the server there, how far is the index, how much comes from drafts. */

import * as vscode from "vscode";
import { ServerError } from "./client";
import type { Session } from "./session";
import { summarise } from "./summary";

const MENU_COMMAND = "agentspec.menu";

/** Between two looks at the server, while the window has the focus or the server does not answer. */
const REFRESH_MILLISECONDS = 5000;
const BUSY_REFRESH_MILLISECONDS = 1000;

export class StatusBar implements vscode.Disposable {
  private readonly item = vscode.window.createStatusBarItem("agentspec.status", vscode.StatusBarAlignment.Right, 90);
  private timer: NodeJS.Timeout | undefined;
  private readonly listening: vscode.Disposable[];
  private disposed = false;

  constructor(private readonly session: Session) {
    this.item.name = "agentspec";
    this.item.command = MENU_COMMAND;
    this.item.text = "$(sync~spin) agentspec";
    this.item.show();
    this.listening = [
      session.onDidChange(() => this.refresh()),
      vscode.window.onDidChangeWindowState(() => this.refresh()),
      vscode.workspace.onDidChangeConfiguration((event) => event.affectsConfiguration("agentspec") && this.refresh()),
    ];
    this.refresh();
  }

  dispose(): void {
    this.disposed = true;
    clearTimeout(this.timer);
    for (const one of [...this.listening, this.item]) one.dispose();
  }

  private refresh(): void {
    clearTimeout(this.timer);
    void this.look();
  }

  private async look(): Promise<void> {
    let next = REFRESH_MILLISECONDS;
    let answered = true;
    try {
      const folder = vscode.workspace.workspaceFolders?.[0]?.uri.fsPath;
      const { text, lines, busy } = summarise(await this.session.state(), folder);
      if (busy) next = BUSY_REFRESH_MILLISECONDS;
      this.show(busy ? "sync~spin" : "zap", text, lines.join("\n\n"));
    } catch (error) {
      answered = false;
      const locked = error instanceof ServerError && error.status === 401;
      const remedy = locked
        ? "Run “Set the server's API key”."
        : "Run “agentspec serve”, or change the setting “agentspec.url”.";
      this.show("warning", locked ? "key needed" : "offline", `${(error as Error).message}\n\n${remedy}`, true);
    }
    if (this.disposed) return;
    clearTimeout(this.timer);
    if (vscode.window.state.focused || !answered) this.timer = setTimeout(() => this.look(), next);
  }

  private show(icon: string, text: string, tooltip: string, warning = false): void {
    this.item.text = `$(${icon}) agentspec${text ? `: ${text}` : ""}`;
    this.item.tooltip = tooltip;
    this.item.backgroundColor = warning ? new vscode.ThemeColor("statusBarItem.warningBackground") : undefined;
  }
}
