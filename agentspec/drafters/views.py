"""The edited file as an edit format spells it: freed from line numbers, or line by line in a patch."""

from __future__ import annotations

import json
import re

NUMBERED_LINE = re.compile(r"^[ ]*(\d+)(?:\t|→|\||: ?)(.*)$")
SHORTEST_VIEW = 5
"""Consecutive numbered lines that make a numbered view."""


def escaped(text: str) -> str:
    """`text` as it stands inside a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def prefixed(text: str, prefix: str) -> str:
    """The lines of `text` as a patch spells them: " " before context, "-" before removed, "+" before added lines."""
    return "".join(prefix + line for line in text.splitlines(keepends=True))


def without_line_numbers(text: str) -> str:
    """The lines of all numbered views in `text` without their numbers, views one after another; may be empty.

    A numbered view is what file-reading tools show: at least `SHORTEST_VIEW` lines with ascending numbers.
    """
    lines: list[str] = []
    view: list[str] = []
    last = None
    for line in [*text.split("\n"), ""]:
        match = NUMBERED_LINE.match(line)
        if match and (last is None or int(match[1]) == last + 1):
            view.append(match[2])
            last = int(match[1])
            continue
        if len(view) >= SHORTEST_VIEW:
            lines += view
        view = [match[2]] if match else []
        last = int(match[1]) if match else None
    return "".join(f"{line}\n" for line in lines)
