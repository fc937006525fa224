"""What a token looks like, as far as the ranker tells tokens apart."""

from __future__ import annotations

from enum import IntEnum


class TokenClass(IntEnum):
    """Values of `TokenClass` in `native/sources.hpp`."""

    UNKNOWN = 0
    NEWLINE = 1
    BLANK = 2
    SPACED_WORD = 3
    WORD = 4
    PUNCTUATION = 5


def token_class(text: str) -> TokenClass:
    """The class of a token by its text."""
    if "\n" in text:
        return TokenClass.NEWLINE
    if text.isspace():
        return TokenClass.BLANK
    if text.startswith(" ") and _is_word(text[1]):
        return TokenClass.SPACED_WORD
    if text and _is_word(text[0]):
        return TokenClass.WORD
    return TokenClass.PUNCTUATION


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"
