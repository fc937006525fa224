"""Which segments to write anew so that their number stays small, and reading them back for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from agentspec.index.segment import (
    DefinitionKind,
    DefinitionMark,
    IndexedDocument,
    Segment,
    definition_table,
    document_table,
    identifier_bits,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_SEGMENTS = 8
"""Lookups search every segment, so their number is bounded."""

_GROWTH = 2
"""A segment at most this many times as large as what is being written is merged into it."""

_MAX_DEAD_SHARE = 0.5
"""A segment with a larger share of dead tokens is written anew."""


def plan_merge(sizes: Sequence[tuple[int, int]], new_tokens: int) -> set[int]:
    """Choose the segments that are replaced by one new segment, which also holds `new_tokens` new tokens.

    Each token is written anew a logarithmic number of times, since a segment only joins one of comparable size.

    Args:
        sizes: of each segment, all tokens and live tokens.
        new_tokens: tokens of documents that no segment holds yet.

    Returns:
        Numbers of the segments to merge; when there are any, or new tokens, one segment takes their place.
    """
    merged = {number for number, (total, live) in enumerate(sizes) if total - live > _MAX_DEAD_SHARE * total}
    pool = new_tokens + sum(sizes[number][1] for number in merged)
    for number in sorted(set(range(len(sizes))) - merged, key=lambda number: sizes[number][1]):
        kept = len(sizes) - len(merged)
        too_many = kept + (pool > 0) > MAX_SEGMENTS
        comparable = pool > 0 and sizes[number][1] <= _GROWTH * pool
        if not (too_many or comparable):
            break
        merged.add(number)
        pool += sizes[number][1]
    return merged


def read_documents(segment: Segment, numbers: Iterable[int]) -> list[IndexedDocument]:
    """Read documents back from a segment as they were written.

    Args:
        segment: undamaged; the caller checks afterwards.
        numbers: which documents.
    """
    documents = document_table(segment)
    marks = definition_table(segment)
    by_start = np.argsort(marks["start"], kind="stable")
    starts = marks["start"][by_start]
    read = []
    for number in numbers:
        start, length = int(documents[number]["start"]), int(documents[number]["length"])
        first, last = np.searchsorted(starts, (start, start + length))
        read.append(
            IndexedDocument(
                blob=documents[number]["blob"].tobytes(),
                tokens=segment.tokens[start : start + length].copy(),
                identifiers=identifier_bits(segment, start, length),
                definitions=tuple(_mark(segment, index, start) for index in by_start[first:last].tolist()),
            )
        )
    return read


def _mark(segment: Segment, index: int, document_start: int) -> DefinitionMark:
    name, start, length, kind = segment.definition(index)
    begin = start - document_start
    return DefinitionMark(name.decode(errors="replace"), DefinitionKind(kind), begin, begin + length)
