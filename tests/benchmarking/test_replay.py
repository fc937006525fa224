"""The replay loop against steps counted by hand and against a naive model; the baselines' rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.benchmarking.baselines import BASELINES, chain
from agentspec.benchmarking.replay import accepted_length, replay, summarise
from agentspec.drafters.base import Budget, DraftReceipt, DraftRequest
from agentspec.drafters.tree import DraftTree, Source
from agentspec.errors import DraftTreeError


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def tree(*nodes: tuple[int, int]) -> DraftTree:
    """A tree from (token, parent) pairs."""
    tokens, parents = zip(*nodes, strict=True)
    count = len(nodes)
    return DraftTree(ints(*tokens), ints(*parents), np.ones(count, np.float32), np.zeros(count, np.uint8))


class Scripted:
    """Proposes one given tree per step and remembers what was committed."""

    def __init__(self, *trees: DraftTree) -> None:
        self.trees = list(trees)
        self.committed: list[list[int]] = []

    def begin(self, request: DraftRequest) -> Scripted:
        return self

    def propose(self, budget: Budget) -> DraftTree:
        return self.trees.pop(0)

    def commit(self, tokens: np.ndarray) -> None:
        self.committed.append(tokens.tolist())

    def receipt(self) -> DraftReceipt:
        return DraftReceipt()


REQUEST = DraftRequest(prompt=ints(1, 2, 3))


def test_steps_counted_by_hand() -> None:
    drafter = Scripted(
        tree((5, -1), (6, 0), (9, 1)),  # 5 6 follow the output, 9 does not: 5 6 + bonus 7
        tree((4, -1), (8, -1), (3, 1)),  # the second branch: 8 + bonus 2
        DraftTree.empty(),  # bonus 1
    )
    result = replay(drafter, REQUEST, ints(5, 6, 7, 8, 2, 1), Budget())
    assert drafter.committed == [[5, 6, 7], [8, 2], [1]]
    assert (result.tokens, result.steps, result.drafted) == (6, 3, 6)
    assert result.step_seconds.shape == (3,)


def test_a_draft_that_covers_the_rest_needs_no_bonus_token() -> None:
    drafter = Scripted(chain(ints(5, 6, 7, 8), Source.REQUEST))
    assert replay(drafter, REQUEST, ints(5, 6), Budget()).steps == 1
    assert drafter.committed == [[5, 6]]


def test_a_broken_tree_ends_the_replay() -> None:
    with pytest.raises(DraftTreeError):
        replay(Scripted(tree((5, -1), (5, -1))), REQUEST, ints(5, 6), Budget())
    with pytest.raises(DraftTreeError):
        replay(Scripted(chain(ints(5, 6, 7), Source.REQUEST)), REQUEST, ints(5, 6), Budget(max_nodes=2))


def naive_accepted(draft: DraftTree, output: list[int]) -> int:
    """Longest of all root paths that is a prefix of the output."""
    best = 0
    paths: list[list[int]] = []
    for token, parent in zip(draft.tokens.tolist(), draft.parents.tolist(), strict=True):
        path = [*(paths[parent] if parent >= 0 else []), token]
        paths.append(path)
        if path == output[: len(path)]:
            best = max(best, len(path))
    return best


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    nodes: list[tuple[int, int]] = []
    for parent_choice, token in draw(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 2)), max_size=20)):
        edge = (token, parent_choice % (len(nodes) + 1) - 1)
        if edge not in nodes:
            nodes.append(edge)
    return tree(*nodes) if nodes else DraftTree.empty()


@given(trees(), st.lists(st.integers(0, 2), max_size=8))
def test_accepted_length_is_the_longest_matching_path(draft: DraftTree, output: list[int]) -> None:
    assert accepted_length(draft, ints(*output)) == naive_accepted(draft, output)


@given(st.sampled_from(sorted(BASELINES)), st.lists(st.integers(0, 3), min_size=1, max_size=30), st.data())
def test_every_baseline_keeps_the_contract(name: str, prompt: list[int], data: st.DataObject) -> None:
    output = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=30))
    budget = Budget(max_nodes=data.draw(st.integers(1, 9)), max_depth=data.draw(st.integers(1, 9)))
    result = replay(BASELINES[name], DraftRequest(prompt=ints(*prompt)), ints(*output), budget)
    assert result.tokens == len(output)
    if name == "none":
        assert result.steps == len(output)


def naive_suffix(context: list[int], count: int) -> list[int]:
    best, longest = [], 0
    for end in range(1, len(context)):
        length = 0
        while length < end and context[end - 1 - length] == context[-1 - length]:
            length += 1
        if length and length >= longest:
            best, longest = context[end : end + count], length
    return best


@given(context=st.lists(st.integers(0, 2), min_size=1, max_size=25), split=st.integers(1, 25), count=st.integers(1, 6))
def test_the_longest_suffix_is_followed(context: list[int], split: int, count: int) -> None:
    session = BASELINES["suffix"].begin(DraftRequest(prompt=ints(*context[:split])))
    if context[split:]:
        session.commit(ints(*context[split:]))
    assert session.propose(Budget(max_nodes=count)).tokens.tolist() == naive_suffix(context, count)


def test_receipts_of_baselines_count_what_happened() -> None:
    session = BASELINES["suffix"].begin(DraftRequest(prompt=ints(1, 2, 3, 4, 1)))
    assert session.propose(Budget(max_nodes=3)).tokens.tolist() == [2, 3, 4]
    session.commit(ints(2, 3, 9))
    receipt = session.receipt()
    assert (receipt.steps, receipt.drafted, receipt.accepted) == (1, {Source.REQUEST: 3}, {Source.REQUEST: 2})


def test_a_summary_weighs_every_step_the_same() -> None:
    short = replay(Scripted(chain(ints(5, 6), Source.REQUEST)), REQUEST, ints(5, 6), Budget())
    long = replay(Scripted(*[DraftTree.empty()] * 4), REQUEST, ints(1, 2, 3, 4), Budget())
    summary = summarise([short, long])
    assert (summary.traces, summary.tokens, summary.tokens_per_step, summary.drafted_per_step) == (2, 6, 6 / 5, 2 / 5)
    assert 0 < summary.step_p50 <= summary.step_p99
