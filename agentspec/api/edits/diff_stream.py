"""A unified diff that is written while the new text comes.

A part of the diff is certain once enough lines behind a change are those of the old text again: what comes later can
only change what is behind them.
"""

from __future__ import annotations

from collections import defaultdict
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Literal

from agentspec.api.edits.lines import split_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

CONTEXT_LINES = 3
"""Unchanged lines around each change."""

SETTLED_LINES = 2 * CONTEXT_LINES + 2
"""Unchanged lines in a row after which a change is over: room for the context behind it and before the next one."""

Opcode = tuple[Literal["replace", "delete", "insert", "equal"], int, int, int, int]
"""As `difflib.SequenceMatcher` has them: kind, start and end in the old lines, start and end in the new ones."""


class DiffStream:
    """Makes the diff of a text to one that comes in pieces.

    Args:
        path: of the file.
        old: the text as it was.
    """

    def __init__(self, path: str, old: str) -> None:
        self._path = path
        self._old = split_lines(old)
        self._places: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for start in range(len(self._old) - SETTLED_LINES + 1):
            self._places[tuple(self._old[start : start + SETTLED_LINES])].append(start)
        self._old_start = 0
        self._new_start = 0
        self._new: list[str] = []
        self._line = ""
        self._begun = False

    def push(self, text: str) -> str:
        """Hunks that are certain now."""
        *lines, self._line = (self._line + text).split("\n")
        hunks = ""
        for line in lines:
            self._new.append(f"{line}\n")
            place = self._settled()
            if place is not None:
                hunks += self._write(place, len(self._new) - SETTLED_LINES, SETTLED_LINES)
                self._move(place + SETTLED_LINES - CONTEXT_LINES)
        return hunks

    def end(self) -> str:
        """The last hunks."""
        if self._line:
            self._new.append(self._line)
        return self._write(len(self._old), len(self._new), 0)

    def _settled(self) -> int | None:
        """Where the last new lines are in the old text, if they are there behind all that is written."""
        found = self._places.get(tuple(self._new[-SETTLED_LINES:]), ())
        return next((place for place in found if place >= self._old_start), None)

    def _move(self, old_start: int) -> None:
        """Go on with the last lines that did not change, which are the context of the next change."""
        self._new_start += len(self._new) - CONTEXT_LINES
        self._new = self._new[-CONTEXT_LINES:]
        self._old_start = old_start

    def _write(self, old_end: int, new_end: int, equal: int) -> str:
        """Hunks of the lines up to `old_end` and `new_end`, with as many equal ones behind both."""
        old, new = self._old[self._old_start : old_end], self._new[:new_end]
        codes: list[Opcode] = [("equal", 0, len(old), 0, len(new))] if old else []
        if old != new:
            codes = [*SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes()]
        if equal:
            codes.append(("equal", len(old), len(old) + equal, len(new), len(new) + equal))
        return "".join(self._hunk(group) for group in _Changes(codes).get_grouped_opcodes(CONTEXT_LINES))

    def _hunk(self, group: Sequence[tuple[str, int, int, int, int]]) -> str:
        header = "" if self._begun else f"--- a/{self._path}\n+++ b/{self._path}\n"
        self._begun = True
        first, last = group[0], group[-1]
        old_range = _range(self._old_start + first[1], last[2] - first[1])
        new_range = _range(self._new_start + first[3], last[4] - first[3])
        lines = []
        for kind, old_start, old_end, new_start, new_end in group:
            old = self._old[self._old_start + old_start : self._old_start + old_end]
            if kind == "equal":
                lines += [f" {line}" for line in old]
            else:
                lines += [f"-{line}" for line in old]
                lines += [f"+{line}" for line in self._new[new_start:new_end]]
        body = "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
        return f"{header}@@ -{old_range} +{new_range} @@\n{body}"


class _Changes(SequenceMatcher[str]):
    """Changes that were found already, for difflib to group."""

    def __init__(self, codes: Sequence[Opcode]) -> None:
        super().__init__(autojunk=False)
        self._codes: list[Opcode] = []
        for code in codes:
            if self._codes and self._codes[-1][0] == code[0] == "equal":
                self._codes[-1] = ("equal", self._codes[-1][1], code[2], self._codes[-1][3], code[4])
            else:
                self._codes.append(code)

    def get_opcodes(self) -> list[Opcode]:
        """The changes; neighbouring equal runs are one."""
        return self._codes


def _range(start: int, length: int) -> str:
    """Lines as the headers of hunks have them: from 1, and without the length of a single one."""
    first = start + 1 if length else start
    return str(first) if length == 1 else f"{first},{length}"
