import assert from "node:assert/strict";
import test from "node:test";
import { modelEntry, withEntry } from "../src/modelEntry";

const entry = modelEntry("http://127.0.0.1:8642", "coder", 8191);

test("the limits of the entry fit the context", () => {
  const [model] = (entry as { models: { maxInputTokens: number; maxOutputTokens: number; url: string }[] }).models;
  assert.equal(model!.maxInputTokens + model!.maxOutputTokens, 8191);
  assert.equal(model!.url, "http://127.0.0.1:8642/v1/chat/completions");
});

test("other entries stay, ours is replaced and keeps its key", () => {
  const theirs = { name: "other", vendor: "x" };
  const once = withEntry(JSON.stringify([theirs]), entry);
  assert.deepEqual(JSON.parse(once), [theirs, entry]);
  assert.equal(withEntry(once, entry), once);
  const keyed = withEntry(JSON.stringify([{ name: "agentspec", apiKey: "${input:k}", old: 1 }]), entry);
  assert.deepEqual(JSON.parse(keyed), [{ apiKey: "${input:k}", ...entry }]);
  assert.deepEqual(JSON.parse(withEntry("", entry)), [entry]);
});

test("what cannot be read is not overwritten", () => {
  assert.throws(() => withEntry("[ // mine\n]", entry), SyntaxError);
  assert.throws(() => withEntry("{}", entry), SyntaxError);
});
