"""The native kernels compute what the torch head does."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.drafters.eagle3.drafter import Eagle3Drafter
from agentspec.drafters.eagle3.native_runner import NativeHead, NativeRunner
from agentspec.drafters.eagle3.runner import TorchRunner
from agentspec.drafters.eagle3.session import Eagle3Session, Growth
from agentspec.drafters.tree import ROOT
from agentspec.kernels import _native
from tests.drafters.tiny_heads import begin, tiny_embedding, tiny_head

WIDTH = 48
VOCAB = 700
DRAFTED = 515
"""Whole blocks of what the kernels look through at once, and a few more."""
SIZES = {"hidden": WIDTH, "heads": 6, "kv_heads": 2, "head_dim": 16, "intermediate": 80}
ALL = Growth(depth=3, width=4, children=DRAFTED, min_path_prob=0.0, level_gain=0.0)
"""Trees that show the probability of every token after every node expanded."""


def head_and_embedding(seed: int, dtype=torch.float32):
    embedding = torch.randn(VOCAB, WIDTH, generator=torch.Generator().manual_seed(seed))
    head = tiny_head(seed, **SIZES, vocab_size=VOCAB, draft_vocab_size=DRAFTED)
    return head.to(dtype), embedding.to(dtype)


def native_session(head, embedding, growth=ALL, threads=1, **options) -> Eagle3Session:
    runner = NativeRunner(NativeHead(head, embedding, threads, **options), Eagle3Session.slots_for(growth))
    return Eagle3Session(runner, growth)


def torch_session(head, embedding, growth=ALL) -> Eagle3Session:
    """What is rounded once is rounded in both; torch then computes in float32."""
    return begin(copy.deepcopy(head).float(), embedding.float(), growth)


def read(sessions, counts: list[int], seed: int) -> None:
    torch.manual_seed(seed)
    for count in counts:
        features, following = torch.randn(count, 3 * WIDTH), torch.randint(0, VOCAB, (count,))
        for session in sessions:
            session.read(features, following)


def distributions(session) -> dict[tuple[int, ...], np.ndarray]:
    """`[V]` probabilities after each path that the session's tree expands."""
    tree = session.draft()
    paths = {ROOT: ()}
    found = {}
    for node, (token, parent, prob) in enumerate(zip(tree.tokens, tree.parents, tree.prob, strict=True)):
        paths[node] = (*paths[int(parent)], int(token))
        found.setdefault(paths[int(parent)], np.zeros(VOCAB))[token] = prob
    return found


@pytest.mark.parametrize("instruction_set", ["", "avx512", "avx2", "portable"])
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 50), counts=st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_every_probability_is_torchs(instruction_set, seed, counts):
    head, embedding = head_and_embedding(seed)
    native = native_session(head, embedding, exact=True, instruction_set=instruction_set)
    reference = torch_session(head, embedding)
    read([native, reference], counts, seed)
    found, expected = distributions(native), distributions(reference)
    assert len(expected) == 1 + 2 * ALL.width
    shared = found.keys() & expected.keys()  # of equally likely nodes either may be expanded
    assert len(shared) > ALL.width
    for path in shared:
        np.testing.assert_allclose(found[path], expected[path], rtol=3e-4, atol=1e-7)


@pytest.mark.parametrize("options", [{"exact": True}, {}], ids=["bfloat16", "bytes"])
def test_rounding_moves_little_probability(options):
    """Some heads amplify a rounding; most of them do not."""
    moved = []
    for seed in range(12):
        head, embedding = head_and_embedding(seed, torch.bfloat16)
        native, reference = native_session(head, embedding, **options), torch_session(head, embedding)
        read([native, reference], [3, 5, 2], seed)
        found, expected = distributions(native), distributions(reference)
        moved += [0.5 * np.abs(found[path] - expected[path]).sum() for path in found.keys() & expected.keys()]
    assert len(moved) > 12
    assert float(np.median(moved)) < (0.02 if options else 0.06)


def test_bytes_draft_the_same_likeliest_tokens_where_the_margin_is_clear():
    if not NativeHead(*head_and_embedding(0), threads=1).bytes:
        pytest.skip("this processor does not multiply bytes")
    clear = same = 0
    for seed in range(24):
        head, embedding = head_and_embedding(seed, torch.bfloat16)
        exact, rounded = native_session(head, embedding, exact=True), native_session(head, embedding)
        read([exact, rounded], [4, 1], seed)
        found, expected = distributions(rounded), distributions(exact)
        for path in found.keys() & expected.keys():
            first, second = np.sort(expected[path])[:-3:-1]
            if first > 2 * second:
                clear += 1
                same += found[path].argmax() == expected[path].argmax()
    assert clear >= 24
    assert same >= 0.98 * clear


@pytest.mark.parametrize("instruction_set", ["", "portable"])
def test_trees_are_the_same_and_stay_so_after_forgetting(instruction_set):
    growth = Growth(depth=4, width=3, children=3, min_path_prob=0.0, level_gain=0.0)
    head, embedding = head_and_embedding(3)
    session = native_session(head, embedding, growth, exact=True, instruction_set=instruction_set)
    expected = torch_session(head, embedding, growth)
    torch.manual_seed(1)
    forgotten = False
    for step in range(220):
        features, following = torch.randn(3, 3 * WIDTH), torch.randint(0, VOCAB, (3,))
        before = session._runner.length
        session.read(features, following)
        expected.read(features, following)
        forgotten |= session._runner.length < before
        if step % 40 == 0 or step > 215:
            tree, other = session.draft(), expected.draft()
            assert tree.parents.tolist() == other.parents.tolist()
            assert tree.tokens.tolist() == other.tokens.tolist()
            assert tree.prob.tolist() == pytest.approx(other.prob.tolist(), rel=1e-3)
    assert forgotten


def test_the_kernels_draft_where_they_can():
    head, embedding = head_and_embedding(0)
    assert isinstance(Eagle3Drafter(head, embedding, layers=8, threads=1).begin()._runner, NativeRunner)
    # Sizes that they do not compute.
    session = Eagle3Drafter(tiny_head(), tiny_embedding(), layers=8, threads=1).begin()
    assert isinstance(session._runner, TorchRunner)


def test_threads_share_the_work_and_change_nothing():
    head, embedding = head_and_embedding(5, torch.bfloat16)
    one, two = native_session(head, embedding), native_session(head, embedding, threads=2)
    read([one, two], [9, 2], 0)
    assert one.draft().prob.tolist() == two.draft().prob.tolist()


def test_processors_without_products_of_bytes_multiply_exactly():
    head, embedding = head_and_embedding(6)
    assert not NativeHead(head, embedding, threads=1, instruction_set="portable").bytes
    default = native_session(head, embedding, instruction_set="portable")
    exact = native_session(head, embedding, instruction_set="portable", exact=True)
    read([default, exact], [4], 0)
    assert default.draft().prob.tolist() == exact.draft().prob.tolist()


@pytest.mark.parametrize("token", [-1, VOCAB])
def test_what_lies_outside_is_refused(token):
    head, embedding = head_and_embedding(0)
    runner = NativeRunner(NativeHead(head, embedding, threads=1), 64)
    with pytest.raises(ValueError, match="outside the vocabulary"):
        runner.read(torch.zeros(1, 3 * WIDTH), torch.tensor([token]), 0)
    with pytest.raises(ValueError, match="features do not fit"):
        runner.read(torch.zeros(2, 3 * WIDTH), torch.tensor([1]), 0)
    with pytest.raises(ValueError, match="no room"):
        runner.read(torch.zeros(65, 3 * WIDTH), torch.ones(65, dtype=torch.int64), 0)
    tree = _native.TreeGrowth(depth=5, width=13, children=2, min_path_prob=0.1, level_gain=0.0)
    with pytest.raises(ValueError, match="nothing was read"):
        runner.grow(tree, 0)
    runner.read(torch.zeros(1, 3 * WIDTH), torch.tensor([1]), 0)
    with pytest.raises(ValueError, match="no room for the tree"):
        runner.grow(tree, 1)
