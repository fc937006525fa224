"""Contenders on traces over a real index."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from agentspec.benchmarking.baselines import BASELINES
from agentspec.benchmarking.comparison import (
    CHAIN_LENGTHS,
    DOUBLED_AT,
    NODE_LIMITS,
    ComparisonRow,
    compare,
    contenders,
    frontier,
    overview,
)
from agentspec.benchmarking.git_history import recorded_edits
from agentspec.benchmarking.replay import ReplaySummary
from agentspec.benchmarking.repository import indexed
from agentspec.benchmarking.traces import Document, build_traces
from agentspec.errors import InvalidRequestError

if TYPE_CHECKING:
    from .conftest import ByteCodec, ScratchRepository


def test_every_drafter_is_tried_at_every_setting() -> None:
    names = [contender.name for contender in contenders(["agentspec", *BASELINES])]
    assert names.count("agentspec") == len(DOUBLED_AT) + len(NODE_LIMITS)
    assert names.count("none") == 1
    assert names.count("suffix") == len(CHAIN_LENGTHS)
    with pytest.raises(InvalidRequestError, match="psychic"):
        contenders(["psychic"])


def test_text_that_is_only_in_the_repository_helps_those_who_read_it(
    repository: ScratchRepository, codec: ByteCodec
) -> None:
    secret = "".join(f"value_{number * 7919 % 1000} = {number}\n" for number in range(40))
    repository.commit("start", main_py="a = 1\n", store_py=secret)
    repository.commit("copy", main_py="a = 1\n" + secret)
    traces = build_traces(recorded_edits(repository.root, 5), codec, ["whole-file"], max_tokens=10_000)
    ticks: list[None] = []
    rows = compare(traces, contenders(["none", "suffix", "suffix+repo", "agentspec"]), None, lambda: ticks.append(None))
    assert len(ticks) == 1
    best: dict[str, float] = {}
    for row in rows:
        best[row.drafter] = max(best.get(row.drafter, 0.0), row.summary.tokens_per_step)
    assert best["none"] == 1.0
    assert best["suffix+repo"] > 3 * best["suffix"]
    assert best["agentspec"] > 3 * best["suffix"]


def test_formats_come_in_their_usual_order(repository: ScratchRepository, codec: ByteCodec) -> None:
    repository.commit("start", main_py="a = 1\n")
    repository.commit("edit", main_py="a = 2\n")
    edits = recorded_edits(repository.root, 1)
    traces = build_traces(edits, codec, ["agent-json", "whole-file"], max_tokens=10_000)
    rows = compare(traces, contenders(["none", "suffix"]))
    assert list(dict.fromkeys(row.format for row in rows)) == ["whole-file", "agent-json"]
    assert [row.drafter for row in rows[:2]] == ["none", "suffix"]


def row(drafter: str, tokens: float, drafted: float, edits: str = "whole-file") -> ComparisonRow:
    return ComparisonRow(edits, drafter, f"{drafted}", ReplaySummary(1, 10, tokens, drafted, 0.0, 0.0, 0.0))


def test_the_overview_keeps_the_best_setting_that_fits() -> None:
    rows = [row("a", 2, 4), row("a", 3, 8), row("a", 2.5, 9), row("a", 9, 17), row("b", 5, 16), row("a", 4, 1, "diff")]
    best = overview(rows, 16)
    assert {drafter: {name: one.setting for name, one in found.items()} for drafter, found in best.items()} == {
        "a": {"whole-file": "8", "diff": "1"},
        "b": {"whole-file": "16"},
    }


def test_settings_that_another_one_beats_are_not_on_the_frontier() -> None:
    rows = [row("a", 9, 17), row("a", 2.5, 9), row("a", 3, 8), row("a", 3, 8.5), row("a", 2, 4)]
    assert [one.setting for one in frontier(rows)] == ["4", "8", "17"]


def test_every_drafter_has_a_setting_within_the_limits() -> None:
    for nodes in NODE_LIMITS:
        fitting = {one.name for one in contenders(["agentspec", *BASELINES]) if one.budget.max_nodes <= nodes}
        assert fitting >= {"agentspec", *BASELINES} - {"none"}


def test_an_index_holds_what_the_documents_say() -> None:
    first, second = np.arange(5, dtype=np.int32), np.arange(3, dtype=np.int32)
    documents = [Document("a.py", first), Document("b.py", second), Document("c.py", first), Document("a.py", second)]
    with indexed(documents, vocabulary_size=10) as snapshot:
        held = {document.path: snapshot.tokens(document).tolist() for document in snapshot.documents()}
    assert held == {"a.py": [0, 1, 2], "b.py": [0, 1, 2], "c.py": [0, 1, 2, 3, 4]}
