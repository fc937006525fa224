"""The difference of two texts as edits that an editor applies."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from lsprotocol import types

if TYPE_CHECKING:
    from collections.abc import Callable

LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
"""A line with its end, as the protocol counts lines; `str.splitlines` knows more line ends."""


def line_edits(old: str, new: str, units: Callable[[str], int]) -> list[types.TextEdit]:
    """Edits of whole lines that turn `old` into `new`; cursors and folds in other lines stay where they are.

    Args:
        old: the document.
        new: what it shall be.
        units: length of a text in the unit that the editor counts positions in.
    """
    before, after = LINE.findall(old), LINE.findall(new)
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    return [
        types.TextEdit(
            types.Range(_start_of(before, begin, units), _start_of(before, end, units)),
            "".join(after[new_begin:new_end]),
        )
        for tag, begin, end, new_begin, new_end in matcher.get_opcodes()
        if tag != "equal"
    ]


def _start_of(lines: list[str], number: int, units: Callable[[str], int]) -> types.Position:
    """Where line `number` starts; behind the last one, where the text ends."""
    if number == len(lines) and lines and not lines[-1].endswith(("\n", "\r")):
        return types.Position(number - 1, units(lines[-1]))
    return types.Position(number, 0)
