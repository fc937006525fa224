"""What tokens look like: their classes for the ranker, and where text may be cut without changing its tokens."""

from __future__ import annotations

import re
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from agentspec.drafters.base import TextCodec

_ESCAPED = re.compile(r'["\\\x00-\x1f]')
"""What a JSON string holds as an escape."""


class TokenClass(IntEnum):
    """Values of `TokenClass` in `native/sources.hpp`."""

    UNKNOWN = 0
    NEWLINE = 1
    BLANK = 2
    SPACED_WORD = 3
    WORD = 4
    PUNCTUATION = 5
    FENCE = 6


class TokenTrait(IntFlag):
    """What of a token's text decides where a text may be cut, see `agentspec.drafters.escaped_view`."""

    STARTS_WORD = 1
    """Begins with a letter or digit."""
    STARTS_SPACED_WORD = 2
    """Begins with a space and a letter or digit."""
    ENDS_PIECE = 4
    """Ends with a letter, a digit, a line end or a tab: what does not start a word begins anew after it."""
    ENDS_QUOTED = 8
    """Ends with a double quote: even a word begins anew after it."""
    ESCAPED = 16
    """Stands in a JSON string with other characters."""


def token_class(text: str) -> TokenClass:
    """The class of a token by its text."""
    if "```" in text:
        return TokenClass.FENCE
    if "\n" in text:
        return TokenClass.NEWLINE
    if text.isspace():
        return TokenClass.BLANK
    if text.startswith(" ") and _is_word(text[1]):
        return TokenClass.SPACED_WORD
    if text and _is_word(text[0]):
        return TokenClass.WORD
    return TokenClass.PUNCTUATION


def token_traits(text: str) -> int:
    """The `TokenTrait`s of a token by its text."""
    if not text:
        return 0
    first, last = text[0], text[-1]
    traits = 0
    if first.isalnum():
        traits = TokenTrait.STARTS_WORD.value
    elif first == " " and text[1:2].isalnum():
        traits = TokenTrait.STARTS_SPACED_WORD.value
    if last.isalnum() or last in "\n\t":
        traits |= TokenTrait.ENDS_PIECE.value
    elif last == '"':
        traits |= TokenTrait.ENDS_QUOTED.value
    if _ESCAPED.search(text):
        traits |= TokenTrait.ESCAPED.value
    return traits


class TokenTable:
    """Classes and traits of a tokenizer's tokens, looked at once each.

    Args:
        codec: the tokenizer.

    Attributes:
        classes: `uint8[V]`, a `TokenClass` per token.
        traits: `uint8[V]`, `TokenTrait`s per token.
    """

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self.classes: NDArray[np.uint8] = np.empty(0, np.uint8)
        self.traits: NDArray[np.uint8] = np.empty(0, np.uint8)

    def cover(self, size: int) -> bool:
        """Make sure that all tokens below `size` are known; whether there were new ones among them."""
        known = len(self.classes)
        if size <= known:
            return False
        texts = [self._codec.decode([token]) for token in range(known, size)]
        self.classes = np.append(self.classes, np.array([token_class(text) for text in texts], np.uint8))
        self.traits = np.append(self.traits, np.array([token_traits(text) for text in texts], np.uint8))
        return True


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"
