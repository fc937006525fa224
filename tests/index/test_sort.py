from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.index._native import CONTEXT_DEPTH, MAX_TOKEN, sort_contexts
from agentspec.index.segment import SEPARATOR


def naive_order(tokens: list[int]) -> list[int]:
    def context(position: int) -> list[int]:
        found: list[int] = []
        while position >= 0 and tokens[position] != SEPARATOR and len(found) < CONTEXT_DEPTH:
            found.append(tokens[position])
            position -= 1
        return found

    positions = [position for position, token in enumerate(tokens) if token != SEPARATOR]
    return sorted(positions, key=lambda position: (context(position), position))


def order(tokens: list[int]) -> list[int]:
    return sort_contexts(np.array(tokens, np.int32)).tolist()


@settings(deadline=None)
@given(st.lists(st.integers(SEPARATOR, 2), max_size=150))
def test_repetitive_tokens_are_sorted_as_the_naive_model_says(tokens: list[int]) -> None:
    assert order(tokens) == naive_order(tokens)


@settings(deadline=None)
@given(st.lists(st.sampled_from([SEPARATOR, 0, 1, 2**20, MAX_TOKEN - 1, MAX_TOKEN]), max_size=60))
def test_large_token_ids_do_not_run_into_each_other(tokens: list[int]) -> None:
    assert order(tokens) == naive_order(tokens)


@pytest.mark.parametrize(("repeated", "lower_first"), [(CONTEXT_DEPTH, False), (CONTEXT_DEPTH - 1, True)])
def test_only_tokens_within_the_depth_decide(repeated: int, lower_first: bool) -> None:
    tokens = [9, *[5] * repeated, SEPARATOR, 1, *[5] * repeated]
    after_nine, after_one = repeated, 2 * repeated + 2
    found = [position for position in order(tokens) if position in (after_nine, after_one)]
    assert found == ([after_one, after_nine] if lower_first else [after_nine, after_one])


def test_nothing_to_sort() -> None:
    assert order([]) == []
    assert order([SEPARATOR, SEPARATOR]) == []


@pytest.mark.parametrize("token", [-2, MAX_TOKEN + 1])
def test_a_token_that_cannot_be_sorted_is_named(token: int) -> None:
    with pytest.raises(ValueError, match=str(token)):
        order([1, token])
