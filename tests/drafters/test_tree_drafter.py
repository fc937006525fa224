from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agentspec.drafters import _native
from agentspec.drafters.base import Budget, DraftRequest
from agentspec.drafters.tree import DraftTree, Source
from agentspec.drafters.tree_drafter import TreeDrafter, TreeSession
from agentspec.drafters.weights import SHAPES, Weights
from agentspec.errors import DraftTreeError, InvalidRequestError
from tests.drafters import naive
from tests.drafters.other_drafter import OWN_WORD, extra_tree
from tests.index.making import document, publish

if TYPE_CHECKING:
    from pathlib import Path

    from agentspec.index.snapshot import Snapshot

tokens = st.integers(0, 5)
prompts = st.lists(tokens, min_size=1, max_size=60)
budgets = st.builds(
    Budget,
    max_nodes=st.integers(1, 40),
    max_depth=st.integers(1, 12),
    min_path_prob=st.floats(0.001, 0.5),
)


def int32(values: list[int]) -> np.ndarray:
    return np.array(values, np.int32)


def share_weights(slope: float, offset: float) -> Weights:
    """A ranker that knows match lengths only: log-odds are slope * max(log share, -8) + offset."""
    weights = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    weights["origin_match"][:] = np.linspace(0, 5, weights["origin_match"].shape[1])
    weights["none"][:] = np.linspace(1, 3, len(weights["none"]))
    weights["hidden"][_native.NODE_FEATURES, 0] = 1  # log share / 4; the bias keeps relu linear down to share = exp(-8)
    weights["hidden_bias"][0] = 2
    weights["output"][0] = 4 * slope
    weights["output_bias"][:] = offset - 8 * slope
    return weights


def session_of(prompt: list[int], **request: object) -> TreeSession:
    return TreeDrafter().begin(DraftRequest(int32(prompt), **request))  # type: ignore[arg-type]


def snapshot_of(directory: Path, **files: list[int]) -> Snapshot:
    return publish(directory, {name: document(content) for name, content in files.items()})


@given(prompt=prompts, budget=budgets, slope=st.floats(0.5, 2), offset=st.floats(-1, 2))
@settings(deadline=None)
def test_the_tree_is_the_one_that_a_plain_best_first_search_grows(
    prompt: list[int], budget: Budget, slope: float, offset: float
) -> None:
    weights = share_weights(slope, offset)
    tree = TreeDrafter(_native.Ranker(weights)).begin(DraftRequest(int32(prompt))).propose(budget)
    plain = naive.NaiveTree(prompt, weights["origin_match"][0], weights["none"], slope, offset)
    expected = plain.build(budget.max_nodes, budget.max_depth, budget.min_path_prob)
    # Rounding alone may keep a node at the threshold or drop it.
    for node in range(len(expected)):
        assume(abs(naive_total(expected, node) - budget.min_path_prob) > 1e-6)
    # It may also tell equal path probabilities apart: then the sums agree.
    assert (
        sorted(paths(tree.tokens.tolist(), tree.parents.tolist()))
        == sorted(paths([t for t, _, _ in expected], [p for _, p, _ in expected]))
        or abs(
            total(tree.prob.tolist(), tree.parents.tolist())
            - total([q for _, _, q in expected], [p for _, p, _ in expected])
        )
        < 1e-4
    )


@given(prompt=prompts, seed=st.integers(0, 1000))
@settings(deadline=None)
def test_probabilities_do_not_depend_on_the_width_of_registers(prompt: list[int], seed: int) -> None:
    random = np.random.default_rng(seed)
    weights = {name: random.normal(0, 0.3, shape).astype(np.float32) for name, shape in SHAPES.items()}
    everything = Budget(max_nodes=512, max_depth=3, min_path_prob=1e-9)
    found = []
    for wide in (True, False):
        tree = TreeDrafter(_native.Ranker(weights, wide)).begin(DraftRequest(int32(prompt))).propose(everything)
        assert len(tree) < everything.max_nodes  # no node was cut off by how it ranked
        found.append(dict(zip(paths(tree.tokens.tolist(), tree.parents.tolist()), tree.prob.tolist(), strict=True)))
    assert found[0] == pytest.approx(found[1], abs=1e-5)


@given(prompt=st.lists(tokens, max_size=60), output=st.lists(tokens, max_size=60), pieces=st.lists(st.integers(1, 40)))
@settings(deadline=None)
def test_what_was_committed_is_found_like_what_was_in_the_prompt(
    prompt: list[int], output: list[int], pieces: list[int]
) -> None:
    drafter = TreeDrafter(_native.Ranker(share_weights(1, 0)))
    whole = drafter.begin(DraftRequest(int32(prompt + output))).propose(Budget(max_nodes=64))
    session = drafter.begin(DraftRequest(int32(prompt)))
    left = output
    for piece in [*pieces, len(output)]:
        session.commit(int32(left[:piece]))
        left = left[piece:]
    tree = session.propose(Budget(max_nodes=64))
    assert tree.tokens.tolist() == whole.tokens.tolist()
    assert tree.parents.tolist() == whole.parents.tolist()
    assert tree.prob == pytest.approx(whole.prob, abs=1e-6)


def naive_total(nodes: list[tuple[int, int, float]], node: int) -> float:
    probability = 1.0
    while node >= 0:
        _, parent, own = nodes[node]
        probability *= own
        node = parent
    return probability


def paths(token: list[int], parent: list[int]) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for t, p in zip(token, parent, strict=True):
        found.append((*(found[p] if p >= 0 else ()), t))
    return found


def total(prob: list[float], parent: list[int]) -> float:
    reached: list[float] = []
    for q, p in zip(prob, parent, strict=True):
        reached.append(q * (reached[p] if p >= 0 else 1))
    return sum(reached)


@given(prompt=prompts, verdicts=st.lists(st.lists(tokens, min_size=1, max_size=6), max_size=6), budget=budgets)
@settings(deadline=None)
def test_every_tree_keeps_the_contract_whatever_is_committed(
    prompt: list[int], verdicts: list[list[int]], budget: Budget
) -> None:
    session = session_of(prompt)
    for verdict in verdicts:
        tree = session.propose(budget)
        tree.validate(budget.max_nodes, budget.max_depth)
        path = np.array([total_of(tree, node) for node in range(len(tree))])
        assert (path >= budget.min_path_prob - 1e-6).all()
        ranks = [naive.rank(p, depth) for p, depth in zip(path.tolist(), tree.depths().tolist(), strict=True)]
        assert (np.diff(ranks) <= 1e-3 * np.array(ranks[:-1])).all(), "what saves most for its waste comes first"
        session.commit(int32(verdict))
    assert session.receipt().steps == len(verdicts)


def total_of(tree: DraftTree, node: int) -> float:
    probability = 1.0
    while node >= 0:
        probability *= float(tree.prob[node])
        node = int(tree.parents[node])
    return probability


@given(prompt=prompts, steps=st.lists(st.floats(0, 1.5), max_size=19))
@settings(deadline=None)
def test_the_cost_curve_cuts_the_tree_where_it_saves_most(prompt: list[int], steps: list[float]) -> None:
    curve = np.cumsum([2, *(2 * step for step in steps)]).astype(np.float32)
    free = session_of(prompt).propose(Budget(max_nodes=max(len(steps), 1), min_path_prob=0.01))
    cut = session_of(prompt).propose(Budget(max_nodes=64, min_path_prob=0.01, cost=curve))
    saved = [0.0]
    for node, depth, added in zip(range(len(free)), free.depths().tolist(), steps, strict=False):
        p = total_of(free, node)
        saved.append(saved[-1] + p * naive.value(depth) * max(1 - added, 0) - (1 - p) * added)
    assert saved[len(cut)] == pytest.approx(max(saved), rel=1e-4, abs=1e-5)


def test_a_flat_curve_drafts_all_and_a_steep_one_nothing() -> None:
    prompt = [1, 2, 3, 4, 5, 6, 7, 8] * 4
    flat = session_of(prompt).propose(Budget(max_nodes=12, cost=np.ones(65, np.float32)))
    steep = session_of(prompt).propose(Budget(cost=np.linspace(1, 200, 65).astype(np.float32)))
    assert len(flat) == 12
    assert len(steep) == 0


def test_a_copy_is_followed_and_counted_by_source(tmp_path: Path) -> None:
    function = list(range(10, 40))
    snapshot = snapshot_of(tmp_path, a=[1, 2, 3, *function], b=[7, 8, 9])
    session = session_of([100, 101, *function[:6]], repository=snapshot)
    tree = session.propose(Budget(min_path_prob=0.02))
    assert tree.tokens.tolist()[:5] == function[6:11]
    assert set(tree.source.tolist()) == {Source.REPOSITORY}
    session.commit(int32([*function[6:11], 99]))
    receipt = session.receipt()
    assert receipt.steps == 1
    assert receipt.drafted == {Source.REPOSITORY: len(tree)}
    assert receipt.accepted == {Source.REPOSITORY: 5}
    assert receipt.propose_seconds > 0


def test_two_repositories_never_mix(tmp_path: Path) -> None:
    drafter = TreeDrafter()
    first = snapshot_of(tmp_path / "first", a=list(range(10, 40)))
    second = snapshot_of(tmp_path / "second", a=[*range(10, 15), *range(60, 90)])
    prompt = int32([1, *range(10, 15)])
    budget = Budget(min_path_prob=0.01)
    of_first = drafter.begin(DraftRequest(prompt, first))
    of_second = drafter.begin(DraftRequest(prompt, second))
    without = drafter.begin(DraftRequest(prompt))
    assert set(of_first.propose(budget).tokens.tolist()) <= set(range(10, 40))
    assert set(of_second.propose(budget).tokens.tolist()) <= {*range(10, 15), *range(60, 90)}
    assert len(of_first.propose(budget))
    assert len(of_second.propose(budget))
    assert not set(without.propose(budget).tokens.tolist()) - {1, *range(10, 15)}


def test_documents_that_a_generation_no_longer_names_are_not_drafted(tmp_path: Path) -> None:
    old, kept = document([1, 2, 3, 4, 50, 51]), document([1, 2, 3, 4, 60, 61])
    publish(tmp_path, {"old": old, "kept": kept})
    snapshot = publish(tmp_path, {"kept": kept})
    tree = session_of([9, 1, 2, 3, 4], repository=snapshot).propose(Budget(min_path_prob=0.001))
    assert 60 in tree.tokens.tolist()
    assert 50 not in tree.tokens.tolist()


def test_a_file_truncated_under_a_session_ends_its_drafts_and_nothing_else(tmp_path: Path) -> None:
    function = list(range(10, 200))
    snapshot = snapshot_of(tmp_path, a=function * 50)
    prompt = [300, 301, 302, 300, 301, *function[:6]]
    session = session_of(prompt, repository=snapshot)
    assert Source.REPOSITORY in session.propose(Budget()).source
    for file in tmp_path.glob("*.segment"):
        os.truncate(file, 4096)
    tree = session.propose(Budget(min_path_prob=0.01))
    tree.validate(64, 256)
    assert Source.REPOSITORY not in tree.source
    session.commit(int32([300]))
    assert 301 in session.propose(Budget(min_path_prob=0.01)).tokens


def test_the_edited_file_is_told_from_the_rest_of_the_repository(tmp_path: Path) -> None:
    shared = [1, 2, 3, 4]
    snapshot = snapshot_of(tmp_path, edited=[*shared, 50, 51], other=[*shared, 60, 61])
    tree = session_of([9, *shared], repository=snapshot, edited_path="edited").propose(Budget(min_path_prob=0.01))
    by_token = dict(zip(tree.tokens.tolist(), tree.source.tolist(), strict=True))
    assert by_token[50] == Source.EDIT
    assert by_token[60] == Source.REPOSITORY


def test_a_prediction_is_drafted_from_its_first_token() -> None:
    session = session_of([7, 8, 9], prediction=int32(list(range(20, 60))))
    tree = session.propose(Budget(min_path_prob=0.05))
    assert tree.tokens[0] == 20
    assert tree.source[0] == Source.PREDICTION
    session.commit(int32([20, 21, 22, 99]))
    tree = session.propose(Budget(min_path_prob=0.005))
    assert {23, 24} & set(tree.tokens.tolist()), "copying may go on where it broke off, or behind what was replaced"


def test_without_any_match_there_is_no_tree() -> None:
    session = session_of([1, 2, 3, 4])
    assert len(session.propose(Budget())) == 0
    session.commit(int32([5]))
    assert session.receipt().drafted == {}


def test_an_empty_prompt_is_served() -> None:
    session = session_of([])
    assert len(session.propose(Budget())) == 0
    session.commit(int32([5, 6, 7, 5, 6]))
    assert session.propose(Budget(min_path_prob=0.01)).tokens[0] == 7


def test_another_drafters_nodes_compete_by_their_probabilities() -> None:
    extra = extra_tree([40, 41, 42, 50], [-1, 0, 1, -1], [0.7, 0.8, 0.9, 0.1])
    drafter = TreeDrafter(fusion=_native.FusionWeights(OWN_WORD))
    tree = drafter.begin(DraftRequest(int32([1, 2, 3]))).propose(Budget(min_path_prob=0.2), extra)
    assert tree.tokens.tolist() == [40, 41, 42]
    assert tree.parents.tolist() == [-1, 0, 1]
    assert tree.prob.tolist() == pytest.approx([0.7, 0.8, 0.9])
    assert set(tree.source.tolist()) == {Source.EAGLE3}


def test_another_drafters_leaves_are_extended_by_what_the_texts_hold() -> None:
    function = list(range(10, 40))
    extra = extra_tree([10, 11, 12], [-1, 0, 1], [0.95, 0.95, 0.95])
    tree = session_of([*function, 1, 2, 3]).propose(Budget(min_path_prob=0.05), extra)
    assert tree.tokens.tolist()[:4] == [10, 11, 12, 13]
    assert tree.source[3] == Source.REQUEST


@given(prompt=prompts, seed=st.integers(0, 1000), budget=budgets)
@settings(deadline=None)
def test_merged_trees_keep_the_contract(prompt: list[int], seed: int, budget: Budget) -> None:
    draw = np.random.default_rng(seed)
    size = int(draw.integers(1, 12))
    parents = [int(draw.integers(-1, node)) for node in range(size)]
    token = [6 + node if draw.random() < 0.3 else int(draw.integers(0, 6)) for node in range(size)]
    edges = dict.fromkeys(zip(parents, token, strict=True))
    if len(edges) < size:
        return
    extra = extra_tree(token, parents, draw.random(size).tolist())
    tree = session_of(prompt).propose(budget, extra)
    tree.validate(budget.max_nodes, budget.max_depth)


@pytest.mark.parametrize("bad", [np.array([1, 2]), np.array([1.0], np.float32), np.zeros((2, 2), np.int32), [1, 2]])
def test_arrays_of_another_type_are_refused(bad: object) -> None:
    with pytest.raises(InvalidRequestError, match=r"prompt is .*expects an int32 array of one dimension"):
        TreeDrafter().begin(DraftRequest(bad))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="verdict is"):
        session_of([1]).commit(bad)  # type: ignore[arg-type]


def test_a_cost_curve_of_another_type_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"budget.cost is float64\[3\]"):
        session_of([1]).propose(Budget(cost=np.ones(3)))  # type: ignore[arg-type]


def test_an_invalid_tree_of_another_drafter_is_refused() -> None:
    with pytest.raises(DraftTreeError, match="parent"):
        session_of([1]).propose(Budget(), extra_tree([4, 5], [-1, 1], [0.5, 0.5]))


def test_probabilities_that_are_not_numbers_are_refused() -> None:
    with pytest.raises(DraftTreeError, match="probability nan"):
        session_of([1]).propose(Budget(), extra_tree([4], [-1], [float("nan")]))
    weights = share_weights(1, 0)
    weights["output"][0] = np.nan
    with pytest.raises(ValueError, match="not finite"):
        _native.Ranker(weights)


def test_sessions_of_one_drafter_are_independent() -> None:
    drafter = TreeDrafter()
    first, second = (drafter.begin(DraftRequest(int32([1, 2, 3]))) for _ in range(2))
    first.commit(int32([50, 51, 52, 50]))
    assert 51 in first.propose(Budget(min_path_prob=0.01)).tokens
    second.commit(int32([50]))
    assert len(second.propose(Budget(min_path_prob=0.01))) == 0
