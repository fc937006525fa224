/** The state of the server in a few words. Knows nothing of VS Code. */

import type { State } from "./client";

/** What the status bar shows. */
export interface Summary {
  readonly text: string;
  readonly lines: readonly string[];
  readonly busy: boolean;
}

function share(part: number, all: number): string {
  return `${Math.round((100 * part) / all)} %`;
}

/**
 * @param state of the server.
 * @param folder the workspace's, where there is one.
 */
export function summarise(state: State, folder?: string): Summary {
  if (!state.engine.ready || !state.model) return { text: "starting", lines: ["The engine is starting."], busy: true };
  const sum = (pick: (span: State["history"][number]) => number) =>
    state.history.reduce((total, span) => total + pick(span), 0);
  const tokens = sum((span) => span.completion_tokens);
  const steps = sum((span) => span.verify_steps);
  const accepted = sum((span) => Object.values(span.accepted).reduce((total, count) => total + count, 0));
  const lines = [`Model: ${state.model}`];
  let text = "";
  let busy = false;
  const repository = state.repositories.find((one) => one.path === folder);
  if (!folder) lines.push("No folder is open.");
  else if (!repository) lines.push("This folder is not indexed; run “Index this workspace”.");
  else {
    const { files_done: done, files_total: all } = repository.progress;
    busy = repository.state === "queued" || repository.state === "indexing";
    if (busy) text = all ? `indexing ${share(done, all)}` : "indexing";
    lines.push(`Index: ${repository.error ?? repository.state}${all ? `, ${done} of ${all} files` : ""}`);
  }
  if (tokens) {
    const perStep = steps ? (tokens / steps).toFixed(1) : "–";
    lines.push(`Last hour: ${share(accepted, tokens)} of ${tokens} tokens from drafts, ${perStep} tokens per step`);
    text ||= `${share(accepted, tokens)} drafted`;
  }
  return { text, lines, busy };
}
