"""Editing tasks made from a repository's own files: the same repository gives the same tasks.

The prompts are plain documents that a model continues, so that small models without much chat training take part.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from agentspec.benchmarking.editing import EditTask
from agentspec.benchmarking.git_history import SOURCE_SUFFIXES
from agentspec.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentspec.drafters.base import TextCodec
    from agentspec.index.snapshot import Document, Snapshot

FILE_TOKENS = (120, 700)
"""Files are taken that have at least and at most this many tokens, so that a run takes minutes."""
SELECTION_TOKENS = 250
"""Longest definition that a task is about."""
PROSE_TOKENS = 128
"""Length of answers that are not copies."""
EXTRA_TOKENS = 32
"""Room in answers that are copies, for what the edit adds."""
FENCE = "```"


@dataclass(frozen=True, slots=True)
class _Subject:
    """What a task is about: a file, and one definition in it.

    Attributes:
        path: of the file.
        text: of the file.
        tokens: its length.
        name: of the definition.
        selection: the definition's whole lines.
        selection_tokens: length of the definition.
    """

    path: str
    text: str
    tokens: int
    name: str
    selection: str
    selection_tokens: int

    def listing(self, heading: str) -> str:
        """The file under a heading."""
        return f"# {heading}\n\n{FENCE}\n{self.text}{FENCE}\n\n"


class _Ask(NamedTuple):
    """The part of an `EditTask` that depends on its kind."""

    prompt: str
    stop: tuple[str, ...]
    max_tokens: int


def _whole_file(subject: _Subject) -> _Ask:
    before = subject.listing(f"{subject.path}, before")
    after = f"# {subject.path}, after: {subject.name} is called {subject.name}_v2\n\n{FENCE}\n"
    return _Ask(before + after, (FENCE,), subject.tokens + EXTRA_TOKENS)


def _search_replace(subject: _Subject) -> _Ask:
    edit = f"# Edit: {subject.name} is called {subject.name}_v2\n\n{subject.path}\n<<<<<<< SEARCH\n"
    return _Ask(
        subject.listing(subject.path) + edit + subject.selection + "=======\n",
        (">>>>>>> REPLACE", "======="),
        subject.selection_tokens + EXTRA_TOKENS,
    )


def _explain_and_edit(subject: _Subject) -> _Ask:
    review = f"# Review\n\nFirst what `{subject.name}` does, then the improved code.\n\n`{subject.name}`"
    return _Ask(subject.listing(subject.path) + review, (), PROSE_TOKENS)


def _new_function(subject: _Subject) -> _Ask:
    new = f"# A new function for {subject.path}, written like {subject.name}: check_{subject.name}\n\n{FENCE}\n"
    return _Ask(subject.listing(subject.path) + new, (FENCE,), PROSE_TOKENS)


KINDS: dict[str, Callable[[_Subject], _Ask]] = {
    "whole-file": _whole_file,
    "search-replace": _search_replace,
    "explain-and-edit": _explain_and_edit,
    "new-function": _new_function,
}
"""What may be asked, by name."""


def editing_tasks(snapshot: Snapshot, codec: TextCodec, kinds: Sequence[str], count: int) -> list[EditTask]:
    """Tasks over files that are spread evenly over the repository, the kinds taking turns.

    Args:
        snapshot: index of the repository.
        codec: the tokenizer that made it.
        kinds: keys of `KINDS`.
        count: how many.

    Raises:
        InvalidRequestError: a kind is unknown, or no file suits.
    """
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise InvalidRequestError(f"unknown kind of edit {unknown[0]!r}; known are {', '.join(KINDS)}")
    subjects = [subject for document in snapshot.documents() for subject in _subject(snapshot, codec, document)]
    if not subjects:
        low, high = FILE_TOKENS
        raise InvalidRequestError(f"no source file of {low} to {high} tokens has a definition to edit")
    tasks = []
    for number, kind in zip(range(count), cycle(kinds), strict=False):
        subject = subjects[number * len(subjects) // count]
        ask = KINDS[kind](subject)
        tasks.append(EditTask(f"{number + 1}", kind, ask.prompt, ask.stop, ask.max_tokens, subject.path))
    return tasks


def _subject(snapshot: Snapshot, codec: TextCodec, document: Document) -> list[_Subject]:
    """The file with the first of its definitions that is short enough; empty when it does not suit."""
    low, high = FILE_TOKENS
    if not low <= document.length <= high or PurePosixPath(document.path).suffix not in SOURCE_SUFFIXES:
        return []
    tokens = snapshot.tokens(document).tolist()
    text = codec.decode(tokens)
    for definition in snapshot.definitions_in(document.path):
        length = definition.end - definition.start
        if not 0 < length <= SELECTION_TOKENS:
            continue
        start = len(codec.decode(tokens[: definition.start]))
        end = len(codec.decode(tokens[: definition.end]))
        first, last = text.rfind("\n", 0, start + 1) + 1, text.find("\n", end - 1)
        selection = text[first : last + 1 if last >= 0 else None]
        return [_Subject(document.path, _ended(text), document.length, definition.name, _ended(selection), length)]
    return []


def _ended(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"
