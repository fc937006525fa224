"""What of a completion is shown, and when the model need not be asked."""

from __future__ import annotations

import pytest

from agentspec.lsp.inline import (
    PREFIX_CHARACTERS,
    SUFFIX_CHARACTERS,
    WINDOW_STEP,
    Cursor,
    Memory,
    Suggestion,
    trim,
)


@pytest.mark.parametrize(
    ("completion", "suffix", "shown"),
    [
        ("a, b)", ")\n", "a, b"),
        ("a, b):", "):\n    return\n", "a, b"),
        ("a, b", ")\n", "a, b"),
        ("x = 1\n    return x\n", "\n    return x\n", "x = 1"),
        ("x = 1\n    y = 2\n    return x + y\nmore", "\n\n    return x + y\n", "x = 1\n    y = 2"),
        ("first\nsecond", " + other\n", "first"),
        ("first\n)\nsecond", "\n)\n", "first\n)\nsecond"),
        ("   \n", "", ""),
        ("", "", ""),
        ("tail  \n\n", "", "tail"),
        (")", ")", ""),
    ],
)
def test_what_stands_behind_the_cursor_is_not_suggested_again(completion: str, suffix: str, shown: str) -> None:
    assert trim(completion, Cursor("u", "", suffix), complete=True) == shown


@pytest.mark.parametrize(
    ("prefix", "prompt", "completion", "shown"),
    [
        ("if x:\n    ", "if x:\n   ", " return y", "return y"),
        ("if x:\n\t\t", "if x:\n\t", "\treturn y", "return y"),
        ("x = ", "x =", " 1", "1"),
        ("if x:\n    ", "if x:\n   ", "     deeper", "    deeper"),
        ("if x:\n    ", "if x:\n   ", "return y", "return y"),
        ("if x:\n", "if x:\n", " y", " y"),
        ("x =", "x =", " 1", " 1"),
        (" ", " ", "x", "x"),
    ],
)
def test_the_blank_before_the_cursor_is_written_by_the_model(
    prefix: str, prompt: str, completion: str, shown: str
) -> None:
    """A tokenizer joins it to the word behind it; asked behind it, a model writes it twice, or nothing."""
    cursor = Cursor("u", prefix, "\n")
    assert cursor.prompt == prompt
    assert trim(completion, cursor, complete=True) == shown


def test_half_a_line_is_dropped_where_there_are_whole_ones() -> None:
    cursor = Cursor("u", "", "")
    assert trim("one\ntwo\nthr", cursor, complete=False) == "one\ntwo"
    assert trim("one tw", cursor, complete=False) == "one tw"


def test_who_types_the_suggestion_is_shown_its_rest() -> None:
    memory = Memory()
    memory.add(Cursor("u", "def ", "\n"), Suggestion("id", "add(a, b)"))
    assert memory.recall(Cursor("u", "def ad", "\n")) == Suggestion("id", "d(a, b)")
    assert memory.recall(Cursor("u", "def ", "\n")) == Suggestion("id", "add(a, b)")
    assert memory.recall(Cursor("u", "def x", "\n")) is None
    assert memory.recall(Cursor("u", "def add(a, b)", "\n")) is None
    assert memory.recall(Cursor("u", "def a", "")) is None
    assert memory.recall(Cursor("v", "def a", "\n")) is None


def test_that_nothing_is_suggested_is_remembered_for_that_place_only() -> None:
    memory = Memory()
    memory.add(Cursor("u", "done", ""), Suggestion("id", ""))
    assert memory.recall(Cursor("u", "done", "")) == Suggestion("id", "")
    assert memory.recall(Cursor("u", "done ", "")) is None


def test_the_window_moves_in_steps_and_is_bounded() -> None:
    text = "".join(chr(0x4E00 + index % 5000) for index in range(40_000))
    starts = set()
    for offset in range(20_000, 20_000 + WINDOW_STEP):
        cursor = Cursor.at("u", text, offset)
        assert PREFIX_CHARACTERS - WINDOW_STEP <= len(cursor.prefix) <= PREFIX_CHARACTERS
        assert text[:offset].endswith(cursor.prefix)
        assert cursor.suffix == text[offset : offset + SUFFIX_CHARACTERS]
        starts.add(offset - len(cursor.prefix))
    assert len(starts) <= 2
    assert Cursor.at("u", "short", 3) == Cursor("u", "sho", "rt")
