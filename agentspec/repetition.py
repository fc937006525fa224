"""Where a text begins to repeat itself: small models loop, and any drafter drafts loops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

LONGEST_PERIOD = 96
"""Tokens of the longest passage whose repetition is noticed."""
REPEATED_TOKENS = 16
"""Tokens that must come again at least before it is called a loop: short passages recur in any code."""


def tokens_before_loop(tokens: Sequence[int]) -> int:
    """Length of the part of a text before it says again what it has just said.

    A loop begins where the next `max(P, REPEATED_TOKENS)` tokens are each the one P places before, for a period P of at
    most `LONGEST_PERIOD` tokens.

    Args:
        tokens: of the text.

    Returns:
        The index of the first repeated token; `len(tokens)` when there is no loop.
    """
    text = np.asarray(tokens, np.int64)
    first = len(text)
    for period in range(1, min(LONGEST_PERIOD, len(text) - 1) + 1):
        length = max(period, REPEATED_TOKENS)
        same = np.concatenate([[0], np.cumsum(text[period:] == text[:-period])])
        starts = np.flatnonzero(same[length:] - same[:-length] == length)
        if len(starts):
            first = min(first, int(starts[0]) + period)
    return first
