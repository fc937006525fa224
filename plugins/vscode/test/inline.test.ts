import assert from "node:assert/strict";
import test from "node:test";
import { cursorAt, Memory, promptOf, trim } from "../src/inline";

const at = (suffix: string, prefix = "") => ({ uri: "u", prefix, suffix });

test("what stands behind the cursor is not suggested again", () => {
  const cases: [string, string, string][] = [
    ["a, b)", ")\n", "a, b"],
    ["a, b):", "):\n    return\n", "a, b"],
    ["a, b", ")\n", "a, b"],
    ["1, 2)\n", "))\n", "1, 2"],
    ["x = 1\n    return x\n", "\n    return x\n", "x = 1"],
    ["x = 1\n    y = 2\n    return x + y\nmore", "\n\n    return x + y\n", "x = 1\n    y = 2"],
    ["first\nsecond", " + other\n", "first"],
    ["first\n)\nsecond", "\n)\n", "first\n)\nsecond"],
    ["   \n", "", ""],
    ["", "", ""],
    ["tail  \n\n", "", "tail"],
  ];
  for (const [completion, suffix, shown] of cases) assert.equal(trim(completion, at(suffix), true), shown);
});

test("the blank before the cursor is written by the model", () => {
  const cases: [string, string, string, string][] = [
    ["if x:\n    ", "if x:\n   ", " return y", "return y"],
    ["if x:\n\t\t", "if x:\n\t", "\treturn y", "return y"],
    ["x = ", "x =", " 1", "1"],
    ["if x:\n    ", "if x:\n   ", "     deeper", "    deeper"],
    ["if x:\n    ", "if x:\n   ", "return y", "return y"],
    ["if x:\n", "if x:\n", " y", " y"],
    ["x =", "x =", " 1", " 1"],
    [" ", " ", "x", "x"],
  ];
  for (const [prefix, prompt, completion, shown] of cases) {
    assert.equal(promptOf(at("\n", prefix)), prompt);
    assert.equal(trim(completion, at("\n", prefix), true), shown);
  }
});

test("half a line is dropped where there are whole ones", () => {
  assert.equal(trim("one\ntwo\nthr", at(""), false), "one\ntwo");
  assert.equal(trim("one tw", at(""), false), "one tw");
});

test("who types the suggestion is shown its rest", () => {
  const memory = new Memory();
  memory.add(at("\n", "def "), { id: "i", text: "add(a, b)" });
  assert.deepEqual(memory.recall(at("\n", "def ad")), { id: "i", text: "d(a, b)" });
  assert.deepEqual(memory.recall(at("\n", "def ")), { id: "i", text: "add(a, b)" });
  assert.equal(memory.recall(at("\n", "def x")), undefined);
  assert.equal(memory.recall(at("\n", "def add(a, b)")), undefined);
  assert.equal(memory.recall(at("", "def a")), undefined);
  assert.equal(memory.recall({ ...at("\n", "def a"), uri: "v" }), undefined);
});

test("the window moves in steps and is bounded", () => {
  const text = Array.from({ length: 40000 }, (_, index) => String.fromCharCode(0x4e00 + (index % 5000))).join("");
  const starts = new Set<number>();
  for (let offset = 20000; offset < 22048; offset++) {
    const { prefix, suffix } = cursorAt("u", text, offset);
    assert.ok(prefix.length <= 8192 && prefix.length >= 8192 - 2048);
    assert.ok(text.slice(0, offset).endsWith(prefix));
    assert.equal(suffix, text.slice(offset, offset + 2048));
    starts.add(offset - prefix.length);
  }
  assert.ok(starts.size <= 2);
  assert.deepEqual(cursorAt("u", "short", 3), { uri: "u", prefix: "sho", suffix: "rt" });
});
