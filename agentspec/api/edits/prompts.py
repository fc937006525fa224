"""How the model is asked for an edit.

What changes least comes first (the task, other files, the file) and what is new with each request last, so that the
prefix cache holds all but the instruction when a file is edited again. The answer is begun for the model: it writes the
file's text right after the opening fence, where the drafts begin too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentspec.api.edits.source_file import SourceFile
from agentspec.engines.base import ChatPrompt

if TYPE_CHECKING:
    from collections.abc import Sequence

SYSTEM = (
    "You edit source files. You are given a file and what to change. Answer with one fenced block that holds the new "
    "text in full, never abbreviated, and nothing else. Keep everything that need not change exactly as it is."
)


@dataclass(frozen=True, slots=True)
class EditPrompt:
    """A prompt and what comes back from it.

    Attributes:
        chat: for the engine.
        fence: closes the answer.
        predicted: text that the answer will resemble.
    """

    chat: ChatPrompt
    fence: str
    predicted: str


def edit_prompt(file: SourceFile, instruction: str, context: Sequence[SourceFile] = ()) -> EditPrompt:
    """Asks for the whole file.

    Args:
        file: to be changed.
        instruction: what to change.
        context: other files; shown in the order of their paths, whatever order they come in.
    """
    return _prompt(file, file, f"{_block('This is the file:', file)}\nChange: {instruction}\n", context)


def selection_prompt(
    file: SourceFile, selected: SourceFile, first_line: int, instruction: str, context: Sequence[SourceFile] = ()
) -> EditPrompt:
    """Asks for new text of some lines.

    Args:
        file: the whole.
        selected: the lines to be rewritten.
        first_line: number of the first of them, from 1.
        instruction: what to change.
        context: other files.
    """
    task = (
        f"{_block('This is the file:', file)}\n"
        f"{_block(f'Rewrite only these lines, from line {first_line} on:', SourceFile('', selected.text))}\n"
        f"Change: {instruction}\n"
    )
    return _prompt(file, selected, task, context)


def apply_prompt(file: SourceFile, update: str, instruction: str | None) -> EditPrompt:
    """Asks for the file with an update worked in that may leave out what stays as it is.

    Args:
        file: to be changed.
        update: patch or sketch.
        instruction: what the update is meant to do.
    """
    task = (
        f"{_block('This is the file:', file)}\n"
        f"{_block('Work this update into it; where it leaves code out, that code stays:', SourceFile('', update))}\n"
    )
    return _prompt(file, file, task + (f"Change: {instruction}\n" if instruction else ""), ())


def _prompt(file: SourceFile, predicted: SourceFile, task: str, context: Sequence[SourceFile]) -> EditPrompt:
    others = "".join(f"{_block('For reference:', other)}\n" for other in sorted(context, key=lambda one: one.path))
    fence = file.fence()
    chat = ChatPrompt(
        messages=[{"role": "system", "content": SYSTEM}, {"role": "user", "content": others + task}],
        answer_prefix=(f"{file.path}\n" if file.path else "") + f"{fence}\n",
    )
    return EditPrompt(chat, fence, predicted.text)


def _block(title: str, file: SourceFile) -> str:
    fence = file.fence()
    name = f"{file.path}\n" if file.path else ""
    text = file.text if file.text.endswith("\n") or not file.text else f"{file.text}\n"
    return f"{title}\n{name}{fence}\n{text}{fence}\n"
