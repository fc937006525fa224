import assert from "node:assert/strict";
import test from "node:test";
import { preview, replacement } from "../src/changes";

/** Random texts from a seed, so that a failure can be repeated. */
function* texts(seed: number): Generator<string> {
  let state = seed;
  const draw = (below: number) => {
    state = (state * 1103515245 + 12345) % 2147483648;
    return Math.floor((state / 2147483648) * below);
  };
  const pieces = ["a\n", "b\n", "\n", "  c\n", "🙂\r\n", "aa\n"];
  for (;;) {
    const lines = Array.from({ length: draw(7) }, () => pieces[draw(pieces.length)]);
    yield lines.join("") + (draw(2) ? "end" : "");
  }
}

test("a replacement turns the old text into the new one and touches whole lines only", () => {
  const source = texts(7);
  for (let round = 0; round < 5000; round++) {
    const [before, after] = [source.next().value as string, source.next().value as string];
    const change = replacement(before, after);
    if (!change) {
      assert.equal(before, after);
      continue;
    }
    assert.equal(before.slice(0, change.start) + change.text + before.slice(change.end), after);
    assert.ok(change.start === 0 || before[change.start - 1] === "\n");
    assert.ok(change.end === before.length || before[change.end - 1] === "\n");
  }
});

test("a replacement is small", () => {
  const lines = Array.from({ length: 100 }, (_, index) => `line ${index}\n`);
  const after = lines.with(50, "changed\n").join("");
  const change = replacement(lines.join(""), after);
  assert.ok(change && change.text.length < 40);
});

test("the preview is the stream and the old lines that it has not come to", () => {
  const before = "one\ntwo\nthree\nfour\n";
  assert.equal(preview(before, ""), before);
  assert.equal(preview(before, "on"), before);
  assert.equal(preview(before, "one\nTWO\n"), "one\nTWO\ntwo\nthree\nfour\n");
  assert.equal(preview(before, "one\nTWO\nthree\nfo"), "one\nTWO\nthree\nfour\n");
  assert.equal(preview(before, "one\nTWO\nthree\nfour\n"), "one\nTWO\nthree\nfour\n");
  assert.equal(preview("", "new\n"), "new\n");
});
