from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.repetition import LONGEST_PERIOD, REPEATED_TOKENS, tokens_before_loop

PASSAGE = list(range(100, 130))


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ([], 0),
        ([1], 1),
        (PASSAGE, 30),
        ([*PASSAGE, *PASSAGE], 30),
        ([1, 2, *PASSAGE, *PASSAGE, 3], 32),
        ([*PASSAGE, 5, *PASSAGE], 61),
        ([*PASSAGE, *PASSAGE[:-1]], 59),
        ([*PASSAGE, *[7] * (REPEATED_TOKENS + 1)], 31),
        ([*PASSAGE, *[7] * REPEATED_TOKENS], 30 + REPEATED_TOKENS),
        ([1, 2, 3, 4] * 3, 12),
        ([1, 2, 3, 4] * 5, 4),
    ],
)
def test_a_text_ends_where_it_says_the_same_again(text: list[int], length: int) -> None:
    assert tokens_before_loop(text) == length


@given(text=st.lists(st.integers(0, 2), max_size=80))
def test_the_first_loop_counts(text: list[int]) -> None:
    def loops_at(start: int) -> bool:
        return any(
            start >= period
            and start + max(period, REPEATED_TOKENS) <= len(text)
            and all(text[at] == text[at - period] for at in range(start, start + max(period, REPEATED_TOKENS)))
            for period in range(1, LONGEST_PERIOD + 1)
        )

    assert tokens_before_loop(text) == next((start for start in range(len(text)) if loops_at(start)), len(text))
