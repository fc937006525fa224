"""How an edit looks on the wire: the prompt a model gets and the answer it gives, one function per format."""

from __future__ import annotations

import difflib
import io
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agentspec.benchmarking.git_history import Edit

CONTEXT_LINES = 3
"""Unchanged lines around each change, as patches have them."""
VIEW_LINES = 200
"""Lines of the numbered view that an agent has read before it edits."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """Prompt and answer, as text.

    Attributes:
        prompt: all that the model sees.
        output: the answer that makes the edit.
    """

    prompt: str
    output: str


@dataclass(frozen=True, slots=True)
class _Hunk:
    """Neighbouring changes with the unchanged lines around them; `old` and `new` are runs of whole lines."""

    old: str
    new: str
    first_line: int


def whole_file(edit: Edit) -> Exchange:
    """The answer is the whole new file in a fence."""
    return Exchange(
        _request(edit, "Answer with the complete new content of the file in one fenced block."),
        f"```\n{_with_newline(edit.after)}```\n",
    )


def search_replace(edit: Edit) -> Exchange:
    """The answer is one search/replace block per hunk."""
    blocks = "".join(
        f"{edit.before.path}\n<<<<<<< SEARCH\n{_with_newline(hunk.old)}"
        f"=======\n{_with_newline(hunk.new)}>>>>>>> REPLACE\n\n"
        for hunk in _hunks(edit)
    )
    return Exchange(
        _request(edit, "Answer with SEARCH/REPLACE blocks; the searched lines must match the file."), blocks
    )


def unified_diff(edit: Edit) -> Exchange:
    """The answer is a unified diff."""
    return Exchange(_request(edit, "Answer with a unified diff."), "".join(_diff_lines(edit)))


def v4a_patch(edit: Edit) -> Exchange:
    """The answer is a patch in the V4A format: context and changed lines, hunks without line numbers."""
    _, _, *lines = _diff_lines(edit)
    hunks = "".join("@@\n" if line.startswith("@@") else line for line in lines)
    return Exchange(
        _request(edit, "Answer with a patch in the V4A format."),
        f"*** Begin Patch\n*** Update File: {edit.before.path}\n{hunks}*** End Patch\n",
    )


def agent_json(edit: Edit) -> Exchange:
    """The answer is `edit_file` calls with JSON arguments; the prompt holds a numbered view, not the file itself."""
    calls = "".join(
        "<tool_call>\n"
        + json.dumps(
            {
                "name": "edit_file",
                "arguments": {"path": edit.before.path, "old_string": hunk.old, "new_string": hunk.new},
            },
            ensure_ascii=False,
        )
        + "\n</tool_call>\n"
        for hunk in _hunks(edit)
    )
    return Exchange(_agent_prompt(edit), calls)


def agent_tagged(edit: Edit) -> Exchange:
    """The answer is `edit_file` calls with raw text between tags, after a numbered view."""
    calls = "".join(
        f"<tool_call>\n<function=edit_file>\n<parameter=path>\n{edit.before.path}\n</parameter>\n"
        f"<parameter=old_string>\n{_with_newline(hunk.old)}</parameter>\n"
        f"<parameter=new_string>\n{_with_newline(hunk.new)}</parameter>\n</function>\n</tool_call>\n"
        for hunk in _hunks(edit)
    )
    return Exchange(_agent_prompt(edit), calls)


FORMATS: dict[str, Callable[[Edit], Exchange]] = {
    "whole-file": whole_file,
    "search-replace": search_replace,
    "unified-diff": unified_diff,
    "v4a-patch": v4a_patch,
    "agent-json": agent_json,
    "agent-tagged": agent_tagged,
}


def _request(edit: Edit, instruction: str) -> str:
    return (
        f"You edit source files. {instruction}\n\n{edit.before.path}\n```\n{_with_newline(edit.before.text)}```\n\n"
        f"Change: {edit.subject}\n\nAnswer:\n"
    )


def _agent_prompt(edit: Edit) -> str:
    lines = _lines(edit.before.text)
    first_change = next(hunk.first_line for hunk in _hunks(edit))
    start = max(0, min(first_change - VIEW_LINES // 2, len(lines) - VIEW_LINES))
    view = "".join(
        f"{number:6}\t{_with_newline(line)}"
        for number, line in enumerate(lines[start : start + VIEW_LINES], start=start + 1)
    )
    return (
        "You are a coding agent. Tools: read_file(path), edit_file(path, old_string, new_string).\n\n"
        f"Task: {edit.subject}\n\nread_file {edit.before.path}\n{view}\n"
    )


def _diff_lines(edit: Edit) -> list[str]:
    """The lines of a unified diff, the two that name the file first."""
    path = edit.before.path
    lines = difflib.unified_diff(
        _lines(edit.before.text), _lines(edit.after), f"a/{path}", f"b/{path}", n=CONTEXT_LINES
    )
    return [_with_newline(line) for line in lines]


def _hunks(edit: Edit) -> Iterator[_Hunk]:
    old, new = _lines(edit.before.text), _lines(edit.after)
    matcher = difflib.SequenceMatcher(a=old, b=new, autojunk=False)
    for group in matcher.get_grouped_opcodes(CONTEXT_LINES):
        old_start, old_end, new_start, new_end = group[0][1], group[-1][2], group[0][3], group[-1][4]
        yield _Hunk("".join(old[old_start:old_end]), "".join(new[new_start:new_end]), old_start)


def _lines(text: str) -> list[str]:
    """Lines with their ends, split at line feeds alone, as git does: form feeds and carriage returns stay inside."""
    return list(io.StringIO(text, newline="\n"))


def _with_newline(text: str) -> str:
    return text if text.endswith("\n") or not text else text + "\n"
