import assert from "node:assert/strict";
import test from "node:test";
import type { State } from "../src/client";
import { summarise } from "../src/summary";

const progress = { files_done: 30, files_total: 120 };
const state: State = {
  model: "coder",
  context_length: 8192,
  engine: { ready: true },
  repositories: [{ path: "/r", state: "ready", progress: { files_done: 120, files_total: 120 }, error: null }],
  history: [
    { completion_tokens: 60, verify_steps: 10, accepted: { edit: 40, repository: 5 } },
    { completion_tokens: 40, verify_steps: 10, accepted: { edit: 30 } },
  ],
};

test("acceptance and tokens per step are those of the whole history", () => {
  const { text, lines, busy } = summarise(state, "/r");
  assert.equal(text, "75 % drafted");
  assert.ok(lines.includes("Last hour: 75 % of 100 tokens from drafts, 5.0 tokens per step"));
  assert.ok(lines.includes("Index: ready, 120 of 120 files"));
  assert.equal(busy, false);
});

test("an index that is being built is shown first", () => {
  const building = { ...state, repositories: [{ path: "/r", state: "indexing" as const, progress, error: null }] };
  assert.deepEqual([summarise(building, "/r").text, summarise(building, "/r").busy], ["indexing 25 %", true]);
});

test("no index, no folder, no engine, nothing generated", () => {
  assert.ok(summarise(state, "/other").lines.some((line) => line.includes("not indexed")));
  assert.ok(summarise(state).lines.includes("No folder is open."));
  assert.equal(summarise({ ...state, engine: { ready: false } }).text, "starting");
  assert.equal(summarise({ ...state, history: [] }, "/r").text, "");
});

test("why an index failed is said", () => {
  const failed = { ...state, repositories: [{ path: "/r", state: "failed" as const, progress, error: "no space" }] };
  assert.ok(summarise(failed, "/r").lines.some((line) => line.includes("no space")));
});
