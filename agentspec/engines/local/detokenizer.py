"""Text of a growing token sequence, released only where it can no longer change."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""What decoders put for bytes that are not UTF-8, an unfinished character's among them."""


class Detokenizer:
    """Decodes one token at a time.

    A token is decoded together with those of the last release, since decoders treat the first token of a sequence
    differently (leading spaces). Text that ends in U+FFFD is held back: its last character may be unfinished.

    Args:
        decode: text of token ids.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._context: list[int] = []
        self._context_length = 0
        self._held: list[int] = []

    def push(self, token: int) -> str:
        """Text that `token` makes final; empty while a character is unfinished."""
        self._held.append(token)
        text = self._held_text()
        if text.endswith(REPLACEMENT):
            return ""
        if text:
            # Tokens without text of their own (special ones) do not replace the context.
            self._context = self._held
            self._context_length = len(self._decode(self._context))
        self._held = []
        return text

    def flush(self, *, truncated: bool) -> str:
        """Text still held at the end of the sequence.

        Args:
            truncated: the sequence was cut off, so that a trailing U+FFFD is an unfinished character and is dropped;
                otherwise the model itself ended there and it is kept.
        """
        text = self._held_text()
        self._held = []
        return text.rstrip(REPLACEMENT) if truncated else text

    def _held_text(self) -> str:
        return self._decode(self._context + self._held)[self._context_length :]
