from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentspec.drafters._native import IndexedText, find_in_segment
from agentspec.index.segment import IndexedDocument, Segment, write_segment
from tests.drafters import naive

if TYPE_CHECKING:
    from pathlib import Path

VOCABULARY = 4
tokens = st.integers(0, VOCABULARY - 1)
texts = st.lists(tokens, min_size=1, max_size=80)


def int32(values: list[int]) -> np.ndarray:
    return np.array(values, np.int32)


def live_words(live: set[int], documents: int) -> np.ndarray:
    words = np.zeros((documents + 63) // 64, np.uint64)
    for document in live:
        words[document // 64] |= np.uint64(1 << document % 64)
    return words


def write(path: Path, documents: list[list[int]]) -> Segment:
    indexed = [
        IndexedDocument(hashlib.sha1(bytes([number])).digest(), int32(document), np.zeros(len(document), np.bool_))
        for number, document in enumerate(documents)
    ]
    return write_segment(path, indexed, VOCABULARY)


@settings(deadline=None)
@given(text=texts, context=st.lists(tokens, max_size=70), limit=st.integers(0, 9), enough=st.integers(0, 9))
def test_a_text_in_memory_yields_the_same_places_as_a_plain_search(
    text: list[int], context: list[int], limit: int, enough: int
) -> None:
    positions, matches = IndexedText(int32(text)).find(int32(context), limit, enough)
    # Chains are walked up to a bound, so a short limit may miss far places; what is found comes in the naive order.
    found = list(zip(positions.tolist(), matches.tolist(), strict=True))
    everything = naive.find_in_text(text, context, len(text), len(text))
    assert set(found) <= set(everything)
    assert len(found) <= limit


@settings(deadline=None)
@given(text=texts, context=texts)
def test_all_places_are_found_when_the_limit_allows(text: list[int], context: list[int]) -> None:
    positions, matches = IndexedText(int32(text)).find(int32(context), 100, 100)
    assert list(zip(positions.tolist(), matches.tolist(), strict=True)) == naive.find_in_text(text, context, 100, 100)


@given(documents=st.lists(texts, min_size=1, max_size=5), data=st.data())
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_segment_yields_the_longest_matches_first_and_only_live_documents(
    tmp_path: Path, documents: list[list[int]], data: st.DataObject
) -> None:
    live = data.draw(st.sets(st.integers(0, len(documents) - 1)))
    context = data.draw(st.lists(tokens, min_size=1, max_size=50))
    shortest = data.draw(st.integers(0, 3))
    segment = write(tmp_path / "a.segment", documents)
    flat = [token for document in documents for token in [*document, -1]]
    positions, matches = find_in_segment(segment, live_words(live, len(documents)), int32(context), len(flat), shortest)
    found = list(zip(positions.tolist(), matches.tolist(), strict=True))
    expected = naive.find_in_segment(flat, live, context, max(shortest, 0))
    # Contexts of length zero sort before everything: the naive search sees them at the start of a document.
    assert set(found) <= set(expected)
    assert {item for item in expected if item[1] >= max(shortest, 1)} <= set(found)
    depths = [min(match, naive.CONTEXT_DEPTH) for match in matches.tolist()]
    assert depths == sorted(depths, reverse=True)


def test_a_limit_keeps_the_longest_matches(tmp_path: Path) -> None:
    segment = write(tmp_path / "a.segment", [[1, 2, 3, 0], [2, 3, 1], [3, 2]])
    positions, matches = find_in_segment(segment, live_words({0, 1, 2}, 3), int32([1, 2, 3]), 2, 1)
    assert matches.tolist() == [3, 2]
    assert positions.tolist() == [3, 7]


def test_a_damaged_segment_yields_nothing_and_kills_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.segment"
    segment = write(path, [[1, 2, 3, 0] * 5000])
    context, live = int32([1, 2, 3]), live_words({0}, 1)
    assert len(find_in_segment(segment, live, context, 5, 1)[0]) == 5
    os.truncate(path, 4096)
    assert len(find_in_segment(segment, live, context, 5, 1)[0]) == 0
    assert segment.damaged


def test_a_separator_is_neither_matched_nor_drafted() -> None:
    positions, _ = IndexedText(int32([1, 2, -1, 3, 1, 2, 3])).find(int32([1, 2]), 5, 5)
    assert positions.tolist() == [6]


def test_empty_texts_and_contexts_yield_nothing() -> None:
    assert len(IndexedText(int32([])).find(int32([1]), 5, 5)[0]) == 0
    assert len(IndexedText(int32([1, 2])).find(int32([]), 5, 5)[0]) == 0
