"""From the text that the model writes inside its fence to the text that the client asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentspec.api.edits.diff_stream import DiffStream

if TYPE_CHECKING:
    from agentspec.api.edits.source_file import SourceFile
    from agentspec.api.schemas.edits import Output

UNNAMED = "file"
"""Path of a file in a diff where nobody has said it."""


class FencedText:
    """The text inside a fence that is open already.

    The engine stops before a fence on a line of its own; one that comes at once leaves no text at all. The last line
    feed waits until more comes, since it may be the one before the fence.

    Args:
        fence: closes the text.
        ends_with_line_feed: whether the text is to end with one.
    """

    def __init__(self, fence: str, *, ends_with_line_feed: bool) -> None:
        self._fence = fence
        self._ends_with_line_feed = ends_with_line_feed
        self._begun = self._closed = False
        self._held = ""

    def push(self, text: str) -> str:
        """Text that is certain to be part of the answer."""
        self._held += text
        if not self._begun:
            self._closed = self._held.startswith(self._fence)
            if self._closed or self._fence.startswith(self._held):
                return ""
            self._begun = True
        kept = 1 if self._held.endswith("\n") else 0
        released, self._held = self._held[: len(self._held) - kept], self._held[len(self._held) - kept :]
        return released

    def end(self) -> str:
        """The last text, when the model has stopped."""
        if self._closed or not (self._begun or self._held):
            return ""
        rest = "" if self._begun else self._held
        return rest + ("\n" if self._ends_with_line_feed else "")


class AnswerText:
    """The answer to an edit: the new file, the new selection, or a patch.

    Args:
        file: as it was.
        output: what the client asked for.
        fence: closes the model's answer.
        start: first line that the model rewrites, from 0.
        end: line behind the last one; None: the file's end.
    """

    def __init__(self, file: SourceFile, output: Output, fence: str, start: int = 0, end: int | None = None) -> None:
        lines = file.lines()
        self._file = file
        self._output = output
        self._before = "".join(lines[:start])
        self._after = "" if end is None else "".join(lines[end:])
        ended = bool(self._after) or not lines or lines[-1].endswith("\n")
        if self._before and not self._before.endswith("\n"):
            self._before += "\n"  # new lines behind a last line that did not end
        self._fenced = FencedText(fence, ends_with_line_feed=ended)
        self._diff = diff_of(file) if output == "patch" else None

    def begin(self) -> str:
        """What is certain before the model has written anything."""
        return self._give(self._before if self._output != "selection" else "")

    def push(self, text: str) -> str:
        """What more of the model's text adds."""
        return self._give(self._fenced.push(text))

    def end(self, *, complete: bool) -> str:
        """What is left at the end of the model's text.

        Args:
            complete: whether the model came to its end. Nothing follows a text that was cut off.
        """
        if not complete:
            return ""
        rest = self._give(self._fenced.end() + (self._after if self._output != "selection" else ""))
        return rest if self._diff is None else rest + self._diff.end()

    def _give(self, text: str) -> str:
        restored = self._file.restored(text)
        return restored if self._diff is None else self._diff.push(restored)


def diff_of(file: SourceFile) -> DiffStream:
    """A diff from a file, as its owner has it, to a new text that comes in pieces."""
    return DiffStream(file.path or UNNAMED, file.restored(file.text))


def unified_diff(file: SourceFile, new: str) -> str:
    """The diff that makes `new`, which has line feeds alone, of a file; empty where nothing changed."""
    diff = diff_of(file)
    return diff.push(file.restored(new)) + diff.end()
