"""What is asked of the model at a cursor, and what of its answer is worth showing."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

PREFIX_CHARACTERS = 8192
"""Most text before the cursor that the model is shown."""

SUFFIX_CHARACTERS = 2048
"""Most text behind the cursor that the model is shown."""

WINDOW_STEP = 2048
"""The shown text begins at a multiple of this, so that it stays the same from key to key and its KV is reused."""

REMEMBERED = 16
"""Completions kept for a user who types what was suggested."""

RECOGNISABLE = 3
"""Characters that make a line recognisable; shorter ones, such as a closing bracket, recur by chance."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The text around a cursor, as far as the model is shown it.

    Attributes:
        uri: the document.
        prefix: text before the cursor.
        suffix: text behind it.
    """

    uri: str
    prefix: str
    suffix: str

    @classmethod
    def at(cls, uri: str, text: str, offset: int) -> Cursor:
        """The cursor at `offset` characters of `text`."""
        begin = max(0, offset - PREFIX_CHARACTERS)
        begin = -(-begin // WINDOW_STEP) * WINDOW_STEP
        return cls(uri, text[min(begin, offset) : offset], text[offset : offset + SUFFIX_CHARACTERS])

    @property
    def held(self) -> str:
        """The space or tab before the cursor, which is left to the model to write.

        Tokenizers join the last one of an indentation to the word behind it. Text that ends with it is text as models
        have not seen it: they write it again, or nothing.
        """
        return self.prefix[-1] if len(self.prefix) > 1 and self.prefix[-1] in " \t" else ""

    @property
    def prompt(self) -> str:
        """What the model continues."""
        return self.prefix.removesuffix(self.held)

    @property
    def rest_of_line(self) -> str:
        """What stands behind the cursor on its line."""
        return self.suffix.partition("\n")[0]

    @property
    def within_line(self) -> bool:
        """Whether code follows on the same line; then a completion of several lines makes no sense."""
        return any(character.isalnum() for character in self.rest_of_line)


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A completion for a cursor.

    Attributes:
        id: of the server's answer, for feedback.
        text: to be inserted at the cursor; empty when there is nothing to suggest.
    """

    id: str
    text: str


def trim(completion: str, cursor: Cursor, complete: bool) -> str:
    """The part of `completion` that does not repeat what stands around the cursor.

    Args:
        completion: what the model wrote behind `cursor.prompt`.
        cursor: where it is to be inserted.
        complete: False when it was cut off; then its last line, which may be half a line, is dropped.
    """
    lines = completion.removeprefix(cursor.held).split("\n")
    if not complete and len(lines) > 1:
        lines.pop()
    if cursor.within_line:
        del lines[1:]
    following = next((line for line in cursor.suffix.split("\n")[1:] if line.strip()), "").rstrip()
    if len(following.strip()) >= RECOGNISABLE:
        for number, line in enumerate(lines[1:], 1):
            if line.rstrip() == following:
                del lines[number:]
                break
    text = _without_overlap("\n".join(lines).rstrip(), cursor.rest_of_line).rstrip()
    return text if text.strip() else ""


def _without_overlap(text: str, rest: str) -> str:
    """`text` without an end that is how `rest` begins."""
    for length in range(min(len(text), len(rest)), 0, -1):
        if text.endswith(rest[:length]):
            return text[:-length]
    return text


class Memory:
    """Recent suggestions; who types the beginning of one is shown its rest, without asking the model again."""

    def __init__(self) -> None:
        self._recent: deque[tuple[Cursor, Suggestion]] = deque(maxlen=REMEMBERED)

    def add(self, cursor: Cursor, suggestion: Suggestion) -> None:
        """Keep a suggestion."""
        self._recent.appendleft((cursor, suggestion))

    def recall(self, cursor: Cursor) -> Suggestion | None:
        """What an earlier suggestion says for `cursor`; None when no earlier one does."""
        for earlier, suggestion in self._recent:
            if (earlier.uri, earlier.suffix) != (cursor.uri, cursor.suffix):
                continue
            if not cursor.prefix.startswith(earlier.prefix):
                continue
            typed = cursor.prefix[len(earlier.prefix) :]
            if suggestion.text.startswith(typed) and (len(suggestion.text) > len(typed) or not typed):
                return Suggestion(suggestion.id, suggestion.text[len(typed) :])
        return None
