"""The formats in which clients and models write changes of a file, and how each is read.

All functions take text with line feeds alone. What a format calls a file is looked at only to find the part of a patch
that belongs to the file at hand.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from agentspec.api.edits.lines import split_lines
from agentspec.api.edits.replacements import PatchMismatchError, Replacement, replace_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

PatchFormat = Literal["whole_file", "search_replace", "unified_diff", "v4a", "sketch"]

_SEARCH = re.compile(r"<{5,9} ?(SEARCH|ORIGINAL|HEAD)\b.*")
_DIVIDER = re.compile(r"={5,9}")
_REPLACE = re.compile(r">{5,9}.*")
_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@.*|@@(?:[ .].*)?")
_NO_LINE_FEED = "\\ No newline"
_FILE_OLD, _FILE_NEW = re.compile(r"--- \S.*"), re.compile(r"\+\+\+ \S.*")
_V4A_BEGIN, _V4A_END, _V4A_EOF = "*** Begin Patch", "*** End Patch", "*** End of File"
_V4A_FILE = re.compile(r"\*\*\* (Update|Add|Delete) File: (.+)")
_V4A_MOVE = "*** Move to: "
_ELISION = re.compile(r"\s*(?:#|//|/\*|<!--|--|;|%|\{/\*)\s*(?:\.\.\.|…).*|\s*(?:\.\.\.|…) \w.*")
_FENCE = re.compile(r"(`{3,})[^`]*")

LEAST_SHARE = 0.5
"""Of the lines of a file, those that a text needs to have to be taken for the whole new file."""


def detect_format(update: str, content: str) -> PatchFormat:
    """The format that `update` is written in, as a change of `content`.

    A text without any marks of a format is the whole new file only where it begins and ends like the old one and is
    not much shorter; anything else may be a part of the file, and the model is asked where it belongs.
    """
    lines = update.split("\n")
    if any(line.rstrip() == _V4A_BEGIN or _V4A_FILE.fullmatch(line.rstrip()) for line in lines):
        return "v4a"
    if any(_SEARCH.fullmatch(line.rstrip()) for line in lines):
        return "search_replace"
    if any(_HUNK.fullmatch(line.rstrip()) for line in lines):
        return "unified_diff"
    if any(_ELISION.fullmatch(line) for line in lines):
        return "sketch"
    new, old = ([line for line in text.split("\n") if line.strip()] for text in (without_fence(update), content))
    whole = not old or (new and new[0] == old[0] and new[-1] == old[-1] and len(new) >= LEAST_SHARE * len(old))
    return "whole_file" if whole else "sketch"


def without_fence(text: str) -> str:
    """The text inside a fence that encloses all of it, with or without the file's path above; other text as it is."""
    lines = text.strip("\n").split("\n")
    for first in (0, 1):
        fence = _FENCE.fullmatch(lines[first].rstrip()) if first < len(lines) - 1 else None
        if fence and lines[-1].rstrip() == fence[1]:
            return "".join(f"{line}\n" for line in lines[first + 1 : -1])
    return text


def apply_patch(content: str, update: str, kind: PatchFormat, path: str) -> str:
    """The file that a patch makes of `content`.

    Whether the last line ends with a line feed stays as it was, unless a diff says otherwise.

    Args:
        content: text of the file.
        update: the patch.
        kind: its format; not `sketch`, which only a model can apply.
        path: of the file; empty where it is not known.

    Raises:
        PatchMismatchError: it does not fit the file exactly, is not written in this format, or changes other files.
    """
    if kind == "whole_file":
        return without_fence(update)
    lines = without_fence(update).split("\n")
    ended = content == "" or content.endswith("\n") or any(line.startswith(_NO_LINE_FEED) for line in lines)
    old = split_lines(content if ended else content + "\n")
    if kind == "search_replace":
        replacements = _search_replace(lines)
    elif kind == "unified_diff":
        replacements = _unified_diff(lines, path)
    else:
        replacements = _v4a(lines, path)
    new = "".join(replace_lines(old, replacements))
    return new if ended else new.removesuffix("\n")


def _search_replace(lines: Sequence[str]) -> list[Replacement]:
    replacements: list[Replacement] = []
    old: list[str] | None = None
    new: list[str] | None = None
    for line in lines:
        if old is None:
            old = [] if _SEARCH.fullmatch(line.rstrip()) else None
        elif new is None:
            if _DIVIDER.fullmatch(line.rstrip()):
                new = []
            else:
                old.append(f"{line}\n")
        elif _REPLACE.fullmatch(line.rstrip()):
            replacements.append(Replacement(tuple(old), tuple(new)))
            old = new = None
        else:
            new.append(f"{line}\n")
    if old is not None or not replacements:
        raise PatchMismatchError("a SEARCH/REPLACE block is not complete")
    return replacements


def _unified_diff(lines: Sequence[str], path: str) -> list[Replacement]:
    replacements: list[Replacement] = []
    concerned = True
    hunk: list[str] | None = None
    number: int | None = None
    for position, line in enumerate([*lines, "@@"]):
        header = _HUNK.fullmatch(line.rstrip())
        names = _FILE_OLD.fullmatch(line) and position + 1 < len(lines) and _FILE_NEW.fullmatch(lines[position + 1])
        if header or names or line.startswith("diff --git "):
            if hunk is not None and concerned and any(hunk):
                replacements.append(_marked(hunk, number=number))
            hunk = [] if header else None
            if header:
                number = None if header[1] is None else int(header[1])
            elif names:
                concerned = _same_file(lines[position + 1].removeprefix("+++ "), path)
        elif hunk is not None:
            hunk.append(line)
    if not replacements:
        raise PatchMismatchError(f"the diff has no hunk for '{path}'")
    return replacements


def _marked(
    lines: Sequence[str], number: int | None = None, anchors: Sequence[str] = (), at_end: bool = False
) -> Replacement:
    """A replacement out of lines that begin with a space, a minus or a plus.

    Args:
        lines: of the hunk; empty ones at its end are none of the file's.
        number: of the first old line, from 1; of the line before where there are no old ones.
        anchors: lines before the hunk.
        at_end: whether the hunk ends the file.
    """
    old: list[str] = []
    new: list[str] = []
    last: list[list[str]] = []
    for line in "\n".join(lines).rstrip("\n").split("\n"):
        mark, text = line[:1], line[1:]
        if line.startswith(_NO_LINE_FEED):
            for side in last:
                side[-1] = side[-1].removesuffix("\n")
            continue
        sides = {"": [old, new], " ": [old, new], "-": [old], "+": [new]}.get(mark)
        if sides is None:
            raise PatchMismatchError(f"the line {line!r} of the patch begins with no mark")
        for side in sides:
            side.append(f"{text}\n")
        last = sides
    first = None if number is None else max(0, number - 1) if old else number
    return Replacement(tuple(old), tuple(new), first, tuple(anchors), at_end)


def _v4a(lines: Sequence[str], path: str) -> list[Replacement]:
    replacements: list[Replacement] = []
    concerned = not any(_V4A_FILE.fullmatch(line.rstrip()) for line in lines)
    anchors: list[str] = []
    part: list[str] = []

    def close(at_end: bool = False) -> None:
        if any(part):
            replacements.append(_marked(part, anchors=anchors, at_end=at_end))
            anchors.clear()
        part.clear()

    for line in lines:
        file = _V4A_FILE.fullmatch(line.rstrip())
        if file or line.rstrip() in (_V4A_BEGIN, _V4A_END):
            close()
            anchors.clear()
            if file:
                concerned = _same_file(file[2], path)
                if concerned and file[1] != "Update":
                    raise PatchMismatchError(f"the patch would {file[1].lower()} the file; send its new content")
        elif not concerned or line.startswith(_V4A_MOVE):
            continue
        elif line.rstrip() == _V4A_EOF:
            close(at_end=True)
        elif line.startswith("@@"):
            close()
            if anchor := line.removeprefix("@@").strip():
                anchors.append(anchor)
        elif line or part:
            part.append(line)
    close()
    if not replacements:
        raise PatchMismatchError(f"the patch has no part for '{path}'")
    return replacements


def _same_file(named: str, path: str) -> bool:
    """Whether a patch means the file at `path`: one of the two names is the end of the other, or none is known."""
    name = named.split("\t", maxsplit=1)[0].strip().removeprefix("./")
    if name[:2] in ("a/", "b/"):
        name = name[2:]
    if not path or name in ("", "/dev/null"):
        return True
    return f"/{name}".endswith(f"/{path}") or f"/{path}".endswith(f"/{name}")
