/** Inline completion. */

import { setTimeout as pause } from "node:timers/promises";
import * as vscode from "vscode";
import { cursorAt, Memory, type Suggestion } from "./inline";
import type { Session } from "./session";

/** Run after a suggestion was taken over. */
export const ACCEPTED_COMMAND = "agentspec.accepted";

/** Asks for what to insert, once the user pauses, and gives up when he types on. */
export class InlineProvider implements vscode.InlineCompletionItemProvider {
  private readonly memory = new Memory();

  constructor(
    private readonly session: Session,
    private readonly log: vscode.LogOutputChannel,
  ) {}

  async provideInlineCompletionItems(
    document: vscode.TextDocument,
    position: vscode.Position,
    context: vscode.InlineCompletionContext,
    token: vscode.CancellationToken,
  ): Promise<vscode.InlineCompletionItem[]> {
    if (!this.session.setting<boolean>("inline.enabled")) return [];
    const cursor = cursorAt(document.uri.toString(), document.getText(), document.offsetAt(position));
    let suggestion = this.memory.recall(cursor);
    if (!suggestion) {
      const automatic = context.triggerKind === vscode.InlineCompletionTriggerKind.Automatic;
      suggestion = await this.ask(cursor, document, automatic, token);
      if (suggestion) this.memory.add(cursor, suggestion);
    }
    if (!suggestion?.text || token.isCancellationRequested) return [];
    const item = new vscode.InlineCompletionItem(suggestion.text, new vscode.Range(position, position));
    item.command = { command: ACCEPTED_COMMAND, title: "Accepted", arguments: [suggestion.id] };
    return [item];
  }

  private async ask(
    cursor: ReturnType<typeof cursorAt>,
    document: vscode.TextDocument,
    automatic: boolean,
    token: vscode.CancellationToken,
  ): Promise<Suggestion | undefined> {
    const abort = new AbortController();
    const listening = token.onCancellationRequested(() => abort.abort());
    try {
      const wait = automatic ? this.session.setting<number>("inline.debounceMilliseconds") : 0;
      await pause(wait, undefined, { signal: abort.signal });
      const client = await this.session.client();
      const tokens = this.session.setting<number>("inline.maxTokens");
      return await client.complete(cursor, this.session.place(document), tokens, abort.signal);
    } catch (error) {
      // Nobody wants a message with every key.
      if (!abort.signal.aborted) this.log.warn(`no suggestion: ${(error as Error).message}`);
      return undefined;
    } finally {
      listening.dispose();
    }
  }
}
