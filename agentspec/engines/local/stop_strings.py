"""Stop strings in a stream of text pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class StopStrings:
    """Releases text that cannot be part of a stop string any more, and cuts at the first one.

    Args:
        stops: the stop strings; empty ones are ignored.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Add a piece of text.

        Returns:
            Text that is final, and the stop string that was completed, if one was: the text then ends before the one
            that begins first, and nothing may be pushed any more.
        """
        self._held += text
        found = [(start, stop) for stop in self._stops if (start := self._held.find(stop)) >= 0]
        if found:
            start, stop = min(found)
            return self._held[:start], stop
        kept = max((overlap(self._held, stop) for stop in self._stops), default=0)
        released, self._held = self._held[: len(self._held) - kept], self._held[len(self._held) - kept :]
        return released, None

    def flush(self) -> str:
        """The text held back, when the sequence ends otherwise."""
        held, self._held = self._held, ""
        return held


def overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
