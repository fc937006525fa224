"""Replacing runs of lines in a file, exactly or not at all: what every patch format comes down to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class PatchMismatchError(Exception):
    """A patch does not say clearly enough where it belongs, or names lines that the file does not have."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """One run of lines and what takes its place.

    Attributes:
        old: the lines to be replaced, with their ends; none: `new` is inserted.
        new: the lines that take their place, with their ends.
        line: number of the first old line, from 0, as the patch has it; None where it names none.
        anchors: lines that come before the old ones, in order, with anything between them; without their ends.
        at_end: whether the old lines are the last ones of the file.
    """

    old: tuple[str, ...]
    new: tuple[str, ...]
    line: int | None = None
    anchors: tuple[str, ...] = ()
    at_end: bool = False


def replace_lines(lines: Sequence[str], replacements: Iterable[Replacement]) -> list[str]:
    """Carry out all replacements.

    Each one is looked for behind the one before it, at first; one that is not there may lie anywhere else, but never
    inside another one. Where the old lines occur several times, the line number that the patch names decides, if the
    lines are right there.

    Args:
        lines: of the file, with their ends.
        replacements: of one patch.

    Raises:
        PatchMismatchError: a run of lines is not in the file, or it cannot be told which one is meant.
    """
    placed: list[tuple[int, Replacement]] = []
    behind = 0
    for replacement in replacements:
        start = _place(lines, replacement, behind)
        placed.append((start, replacement))
        behind = start + len(replacement.old)
    placed.sort(key=lambda item: item[0])
    result: list[str] = []
    done = 0
    for start, replacement in placed:
        if start < done:
            raise PatchMismatchError("two parts of the patch change the same lines")
        result += [*lines[done:start], *replacement.new]
        done = start + len(replacement.old)
    return [*result, *lines[done:]]


def _place(lines: Sequence[str], replacement: Replacement, behind: int) -> int:
    """Index of the first line that `replacement` replaces."""
    first = 0
    for anchor in replacement.anchors:
        first = _find_anchor(lines, anchor, max(first, behind))
    if replacement.anchors:
        behind = first
    if not replacement.old:
        return _insertion(lines, replacement, behind)
    found = [start for start in _occurrences(lines, replacement.old) if start >= first]
    if replacement.at_end:
        found = [start for start in found if start + len(replacement.old) == len(lines)]
    if not found:
        raise PatchMismatchError(f"the file has no line {replacement.old[0]!r} followed by the others of its part")
    if replacement.line in found:
        return replacement.line
    ahead = [start for start in found if start >= behind]
    if replacement.anchors and ahead:
        return ahead[0]
    if len(found) > 1:
        raise PatchMismatchError(f"the lines from {replacement.old[0]!r} on occur {len(found)} times in the file")
    return found[0]


def _insertion(lines: Sequence[str], replacement: Replacement, behind: int) -> int:
    if replacement.line is not None and replacement.line <= len(lines):
        return replacement.line
    if replacement.anchors:
        return behind
    if replacement.at_end or not lines:
        return len(lines)
    raise PatchMismatchError("the patch does not say where its new lines belong")


def _find_anchor(lines: Sequence[str], anchor: str, start: int) -> int:
    """Index behind the first line from `start` on that is `anchor`, whatever its indentation."""
    for index in range(start, len(lines)):
        if lines[index].strip() == anchor.strip():
            return index + 1
    raise PatchMismatchError(f"the file has no line {anchor!r} behind the part before it")


def _occurrences(lines: Sequence[str], run: Sequence[str]) -> list[int]:
    wanted = list(run)
    return [
        start
        for start in range(len(lines) - len(wanted) + 1)
        if lines[start] == wanted[0] and list(lines[start : start + len(wanted)]) == wanted
    ]
