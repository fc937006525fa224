from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentspec.index import syntax
from agentspec.index.grammars import GRAMMARS, grammar_of
from agentspec.index.syntax import SyntaxMarker, marks_version

if TYPE_CHECKING:
    from agentspec.index.tokenizer import IndexTokenizer

PYTHON = """\
import os

@cache
class Étude(Base):
    @property
    def size(self):
        def inner(): pass
        return os.x

async def main(a, b):
    pass
"""
JAVASCRIPT = """\
export const arrow = async (a) => a;
class Shape { area() {} }
export default function draw() {}
"""
TYPESCRIPT = """\
export interface Named { name: string }
enum Colour { Red }
type Id = string;
namespace Inner { export function f(): void {} }
abstract class Base { abstract m(): void; n() {} }
"""
GO = """\
package main
type Point struct { X int }
type (
	Id int
	Doer interface { Do() }
)
func (p *Point) Move() {}
func main() {}
"""
RUST = """\
pub struct Point { x: i32 }
impl Point { pub fn new() -> Self { todo!() } }
trait Shape { fn area(&self); }
enum Kind { A }
mod inner { fn deep() {} }
macro_rules! twice { () => {} }
const LIMIT: u8 = 1;
"""
JAVA = """\
class Point { Point() {} int x() { return 1; } enum Kind { A } }
interface Shape { void area(); }
record Pair(int a) {}
"""
C = """\
#define LIMIT 1
struct point { int x; };
typedef struct { int y; } other;
enum kind { A };
static int *move(int a) { return 0; }
int main(void) { return 0; }
"""
CPP = """\
namespace shapes { class Point { public: int x() const { return 1; } }; }
template <class T> T same(T value) { return value; }
int shapes::Point::y() { return 1; }
Point &ref(Point &point) { return point; }
using Id = int;
"""
CSHARP = "namespace N { class P { public P() {} int X() => 1; } struct S {} interface I {} enum E { A } }\n"
RUBY = "module M\n  class A::B\n    def foo; end\n    def self.bar; end\n  end\nend\n"
PHP = "<?php\nclass A { function f() {} }\ninterface I {}\ntrait T {}\nfunction g() {}\n"

EXPECTED = {
    ("a.py", PYTHON): "CLASS Étude, METHOD size, FUNCTION inner, FUNCTION main",
    ("a.js", JAVASCRIPT): "FUNCTION arrow, CLASS Shape, METHOD area, FUNCTION draw",
    ("a.jsx", "function View() { return <div/>; }\n"): "FUNCTION View",
    ("a.ts", TYPESCRIPT): "INTERFACE Named, ENUM Colour, TYPE Id, MODULE Inner, FUNCTION f, CLASS Base, METHOD n",
    (
        "a.tsx",
        "const View = () => <div/>;\nfunction Other(p: P) { return <View/>; }\n",
    ): "FUNCTION View, FUNCTION Other",
    ("a.go", GO): "STRUCT Point, TYPE Id, TYPE Doer, METHOD Move, FUNCTION main",
    ("a.rs", RUST): "STRUCT Point, METHOD new, INTERFACE Shape, ENUM Kind, MODULE inner, FUNCTION deep, MACRO twice, "
    "CONSTANT LIMIT",
    ("a.java", JAVA): "CLASS Point, METHOD Point, METHOD x, ENUM Kind, INTERFACE Shape, METHOD area, CLASS Pair",
    ("a.c", C): "MACRO LIMIT, STRUCT point, TYPE other, ENUM kind, FUNCTION move, FUNCTION main",
    ("a.hpp", CPP): "MODULE shapes, CLASS Point, METHOD x, FUNCTION same, FUNCTION y, FUNCTION ref, TYPE Id",
    ("a.cs", CSHARP): "MODULE N, CLASS P, METHOD P, METHOD X, STRUCT S, INTERFACE I, ENUM E",
    ("a.rb", RUBY): "MODULE M, CLASS B, METHOD foo, METHOD bar",
    ("a.php", PHP): "CLASS A, METHOD f, INTERFACE I, INTERFACE T, FUNCTION g",
    ("a.sh", "foo() { echo; }\nfunction bar { ls; }\n"): "FUNCTION foo, FUNCTION bar",
    ("a.json", '{"key": 1}\n'): "",
    ("a.yaml", "key: 1\n"): "",
    ("a.html", "<p>x</p>\n"): "",
    ("a.css", ".x { color: red }\n"): "",
}

IDENTIFIERS = {
    ("a.py", "value = other.field + 1  # comment\n"): {"value", "other", "field"},
    ("a.js", "const {a, b: c} = d.e;\n"): {"a", "b", "c", "d", "e"},
    ("a.go", "package p\nvar x T = y.Z\n"): {"p", "x", "T", "y", "Z"},
    ("a.json", '{"ключ": {"inner": "value"}}\n'): {"ключ", "inner"},
    ("a.yaml", "key:\n  inner: value\n"): {"key", "inner"},
    ("a.css", ".name { color: red }\n"): {"name", "color"},
    ("a.html", "<p id='x'>text</p>\n"): {"p", "id"},
    ("a.sh", "name=1; run $name\n"): {"name", "run"},
}


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)


def marker() -> SyntaxMarker:
    return SyntaxMarker(pytest.fail)


@pytest.mark.parametrize(("path", "text"), EXPECTED, ids=lambda value: value if len(value) < 9 else "")
def test_definitions_of_every_language(tokenizer: IndexTokenizer, path: str, text: str) -> None:
    (tokenized,) = tokenizer.tokenize([text])
    marks = marker().mark(path, text, tokenized)
    found = ", ".join(f"{mark.kind.name} {mark.name}" for mark in marks.definitions)
    assert found == EXPECTED[path, text]
    for mark in marks.definitions:
        covered = text[tokenized.starts[mark.start] : tokenized.ends[mark.end - 1]]
        assert mark.name in covered


def test_every_language_is_tested() -> None:
    tested = {grammar.language for path, _ in EXPECTED if (grammar := grammar_of(path, "")) is not None}
    assert tested == {grammar.language for grammar in GRAMMARS}


def test_a_definition_spans_its_decorators_and_its_body(tokenizer: IndexTokenizer) -> None:
    (tokenized,) = tokenizer.tokenize([PYTHON])
    spans = {
        mark.name: PYTHON[tokenized.starts[mark.start] : tokenized.ends[mark.end - 1]].strip()
        for mark in marker().mark("a.py", PYTHON, tokenized).definitions
    }
    assert spans["Étude"].startswith("@cache\nclass Étude")
    assert spans["Étude"].endswith("return os.x")
    assert spans["size"].startswith("@property")
    assert spans["main"] == "async def main(a, b):\n    pass"


@pytest.mark.parametrize(("path", "text"), IDENTIFIERS)
def test_identifiers_are_marked_and_nothing_else(tokenizer: IndexTokenizer, path: str, text: str) -> None:
    """Tokens may be finer or coarser than identifiers: each marked token overlaps one, each unmarked token none."""
    (tokenized,) = tokenizer.tokenize([text])
    marked = marker().mark(path, text, tokenized).identifiers
    pieces = ["" for _ in range(len(text))]
    for start, end, inside in zip(tokenized.starts.tolist(), tokenized.ends.tolist(), marked.tolist(), strict=True):
        for place in range(start, end):
            pieces[place] = text[place] if inside else " "
    words = "".join(pieces)
    for name in IDENTIFIERS[path, text]:
        assert name in words
    for other in ("comment", "value", "red", "text", "const", "package"):
        if other not in IDENTIFIERS[path, text]:
            assert other not in words


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(
    st.sampled_from(list(EXPECTED)), st.integers(0, 300), st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
)
def test_broken_code_is_marked_within_bounds(
    tokenizer: IndexTokenizer, case: tuple[str, str], place: int, insertion: str
) -> None:
    path, text = case
    text = text[:place] + insertion + text[place + 3 :]
    (tokenized,) = tokenizer.tokenize([text])
    marks = marker().mark(path, text, tokenized)
    assert marks.identifiers.shape == tokenized.tokens.shape
    assert all(0 <= mark.start < mark.end <= len(tokenized.tokens) for mark in marks.definitions)


@pytest.mark.parametrize(
    ("path", "first_line", "language"),
    [
        ("dir/A.PY", "", "Python"),
        ("Rakefile", "", "Ruby"),
        ("script", "#!/usr/bin/env python3", "Python"),
        ("script", "#!/usr/bin/env -S node --flag", "JavaScript"),
        ("script", "#!/bin/sh", "Bash"),
        (".bashrc", "", "Bash"),
        ("lib.h", "", "C++"),
        ("notes.md", "", None),
        ("script", "not #!/bin/sh", None),
        (".py", "", None),
    ],
)
def test_a_file_has_the_language_of_its_name_or_first_line(path: str, first_line: str, language: str | None) -> None:
    grammar = grammar_of(path, first_line)
    assert (grammar.language if grammar else None) == language


def test_a_missing_grammar_is_said_once_and_changes_the_marks_version(
    tokenizer: IndexTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = marks_version()
    real_import = syntax.importlib.import_module

    def import_module(name: str) -> Any:
        if name == "tree_sitter_ruby":
            raise ImportError(name)
        return real_import(name)

    real_find = syntax.importlib.util.find_spec
    monkeypatch.setattr(syntax.importlib, "import_module", import_module)
    monkeypatch.setattr(
        syntax.importlib.util, "find_spec", lambda name: None if name == "tree_sitter_ruby" else real_find(name)
    )
    said: list[str] = []
    marks = SyntaxMarker(said.append)
    tokenized = tokenizer.tokenize([RUBY, PYTHON])
    for path in ("a.rb", "b.rb"):
        found = marks.mark(path, RUBY, tokenized[0])
        assert not found.identifiers.any()
        assert found.definitions == ()
    assert len(marks.mark("a.py", PYTHON, tokenized[1]).definitions) == 4
    assert len(said) == 1
    assert "install tree-sitter-ruby" in said[0]
    assert marks_version() != before


def test_a_file_that_takes_too_long_is_left_unmarked(
    tokenizer: IndexTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syntax, "_MAX_PARSE_SECONDS", -1.0)
    said: list[str] = []
    marks = SyntaxMarker(said.append)
    (tokenized,) = tokenizer.tokenize([PYTHON])
    assert marks.mark("a.py", PYTHON, tokenized).definitions == ()
    assert len(said) == 1
    assert "a.py cannot be parsed" in said[0]
    monkeypatch.setattr(syntax, "_MAX_PARSE_SECONDS", 60.0)
    assert len(marks.mark("a.py", PYTHON, tokenized).definitions) == 4, "the next file is parsed again"


def test_deep_nesting_does_not_end_the_process(tokenizer: IndexTokenizer) -> None:
    text = "(" * 20_000 + ")" * 20_000
    (tokenized,) = tokenizer.tokenize([text])
    for path in ("a.py", "a.js", "a.json"):
        assert len(SyntaxMarker(lambda _: None).mark(path, text, tokenized).identifiers) == len(tokenized.tokens)
