"""How another drafter's word is weighed against the texts'."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.drafters import _native
from agentspec.drafters.base import Budget, DraftRequest
from agentspec.drafters.tree import ROOT, DraftTree, Source
from agentspec.drafters.tree_drafter import TreeDrafter, TreeSession
from agentspec.drafters.weights import read_fusion
from agentspec.errors import InvalidRequestError
from tests.drafters.other_drafter import OWN_WORD, extra_tree

if TYPE_CHECKING:
    from pathlib import Path

BUDGET = Budget(max_nodes=64, max_depth=4, min_path_prob=1e-4)
WEIGHTS = {
    "both": np.array([0.3, 0.6, 0.7, 0.2, -0.1], np.float32),
    "texts": np.array([-0.4, 0.9, 5.0, 0.1, 0.3], np.float32),
    "other": np.array([-0.8, 5.0, 0.8, 0.25, 0.15], np.float32),
}
REPEATED = [1, 2, 3, 1, 2, 4, 1, 2, 3, 1, 2]


def session_of(prompt: list[int], weights: dict[str, np.ndarray]) -> TreeSession:
    fusion = _native.FusionWeights(weights)
    return TreeDrafter(fusion=fusion).begin(DraftRequest(np.array(prompt, np.int32)))


def log_odds(prob: float, least: float) -> float:
    clipped = min(max(prob, least), 1 - least)
    return math.log(clipped / (1 - clipped))


def children(tree: DraftTree, parent: int) -> dict[int, float]:
    return {int(tree.tokens[at]): float(tree.prob[at]) for at in np.flatnonzero(tree.parents == parent)}


@given(own=st.floats(0.01, 0.98), other=st.floats(0.01, 0.4), share=st.floats(0.01, 0.9))
def test_log_odds_are_linear_in_what_both_say(own: float, other: float, share: float) -> None:
    named = {3: share * own, 50: (1 - share) * other}
    extra = extra_tree(list(named), [ROOT, ROOT], list(named.values()))
    by_texts = children(session_of(REPEATED, WEIGHTS).propose(BUDGET), ROOT)
    assert {3, 4} <= by_texts.keys()
    found = children(session_of(REPEATED, WEIGHTS).propose(BUDGET, extra), ROOT)
    missed = log_odds(1 - sum(by_texts.values()), 0.02)
    rest = log_odds(1 - sum(named.values()), 0.02)
    for token in by_texts.keys() | named.keys():
        case = "both" if token in by_texts and token in named else "texts" if token in by_texts else "other"
        constant, texts, head, of_missed, of_rest = WEIGHTS[case].tolist()
        odds = constant + of_missed * missed + of_rest * rest
        odds += texts * log_odds(by_texts[token], 1e-3) if token in by_texts else 0
        odds += head * log_odds(named[token], 1e-3) if token in named else 0
        expected = 1 / (1 + math.exp(-odds))
        if expected > 2 * BUDGET.min_path_prob:
            assert found[token] == pytest.approx(expected, rel=1e-3)


def test_where_the_other_drafter_has_not_looked_the_texts_alone_speak() -> None:
    tree = session_of(REPEATED, WEIGHTS).propose(BUDGET)
    after = int(np.flatnonzero((tree.parents == ROOT) & (tree.tokens == 3))[0])
    expected = children(tree, after)
    fused = session_of(REPEATED, WEIGHTS).propose(BUDGET, extra_tree([3], [ROOT], [0.9]))
    leaf = int(np.flatnonzero((fused.parents == ROOT) & (fused.tokens == 3))[0])
    assert expected
    assert children(fused, leaf) == expected


def test_a_token_counts_for_the_drafter_that_is_surer_of_it() -> None:
    for prob, source in ((0.99, Source.EAGLE3), (0.02, Source.REQUEST)):
        tree = session_of(REPEATED, WEIGHTS).propose(BUDGET, extra_tree([3], [ROOT], [prob]))
        assert tree.source[(tree.tokens == 3) & (tree.parents == ROOT)] == [source]


@pytest.mark.parametrize(("verdict", "sign"), [([50, 60], 1), ([9, 9], -1)])
def test_verdicts_correct_how_the_other_drafter_is_heard(verdict: list[int], sign: int) -> None:
    extra = extra_tree([50, 60], [ROOT, 0], [0.5, 0.5])
    session = session_of([1, 2, 3], OWN_WORD)
    probs = []
    for _ in range(200):
        session.propose(BUDGET)
        tree = session.propose(BUDGET, extra)
        probs.append(children(tree, ROOT)[50])
        session.commit(np.array(verdict, np.int32))
    assert probs[0] == pytest.approx(0.5, abs=1e-3)
    assert sign * (probs[-1] - probs[0]) > 0.15


def test_verdicts_on_trees_of_the_texts_alone_correct_nothing() -> None:
    extra = extra_tree([50], [ROOT], [0.5])
    session = session_of([1, 2, 3], OWN_WORD)
    for _ in range(50):
        session.propose(BUDGET, extra)
        session.propose(BUDGET)
        session.commit(np.array([9], np.int32))
    assert children(session.propose(BUDGET, extra), ROOT)[50] == pytest.approx(0.5, abs=1e-3)


def test_weights_that_are_not_all_there_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "fusion.json"
    file.write_text('{"both": [1, 2, 3, 4, 5], "texts": [1, 2, 3, 4, 5]}')
    with pytest.raises(InvalidRequestError, match=r"fusion.json holds \['both', 'texts'\]; expected"):
        read_fusion(file)
    file.write_text('{"both": [1, 2, 3, 4, 5], "texts": [1, 2, 3, 4, 5], "other": [1]}')
    with pytest.raises(InvalidRequestError, match=r"other has shape \(1,\); expected \(5,\)"):
        read_fusion(file)
    with pytest.raises(ValueError, match="both is not finite"):
        _native.FusionWeights(WEIGHTS | {"both": np.full(5, np.nan, np.float32)})
