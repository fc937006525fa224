"""Edits of whole lines: applied as the protocol says, they give the new text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentspec.lsp.changes import LINE, line_edits

if TYPE_CHECKING:
    from lsprotocol import types


def units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def apply(text: str, edits: list[types.TextEdit]) -> str:
    def offset(position: types.Position) -> int:
        lines = LINE.findall(text)
        before = "".join(lines[: position.line])
        line = lines[position.line] if position.line < len(lines) else ""
        return len(before) + len(line.encode("utf-16-le")[: 2 * position.character].decode("utf-16-le"))

    for edit in sorted(edits, key=lambda edit: offset(edit.range.start), reverse=True):
        text = text[: offset(edit.range.start)] + edit.new_text + text[offset(edit.range.end) :]
    return text


LINES = st.lists(st.sampled_from(["a\n", "b\n", "🙂 c\r\n", "d\r", "\n", "e\u2028f\n"]), max_size=8).map("".join)
TEXTS = st.tuples(LINES, st.sampled_from(["", "end", "🙂"])).map("".join)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no failure
@given(TEXTS, TEXTS)
def test_edits_give_the_new_text(old: str, new: str) -> None:
    assert apply(old, line_edits(old, new, units)) == new


def test_equal_lines_are_not_touched() -> None:
    [edit] = line_edits("a\nb\nc\n", "a\nB\nc\n", units)
    assert (edit.range.start.line, edit.range.end.line, edit.new_text) == (1, 2, "B\n")
    assert line_edits("a\n", "a\n", units) == []
