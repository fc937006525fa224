"""The native kernels compute what the torch head does."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.drafters.eagle3.drafter import Eagle3Drafter
from agentspec.drafters.eagle3.native_runner import NativeHead, NativeRunner
from agentspec.drafters.eagle3.runner import Behind, TorchRunner
from agentspec.drafters.eagle3.session import Eagle3Session, Growth
from tests.drafters.tiny_heads import VOCAB, begin, tiny_embedding, tiny_head

WIDTH = 48
SIZES = {"hidden": WIDTH, "heads": 6, "kv_heads": 2, "head_dim": 16, "intermediate": 80, "draft_vocab_size": 35}
SLOTS = 64


def head_and_embedding(seed: int, dtype=torch.float32):
    embedding = torch.randn(VOCAB, WIDTH, generator=torch.Generator().manual_seed(seed))
    return tiny_head(seed, **SIZES).to(dtype), embedding.to(dtype)


def runners(seed: int, dtype=torch.float32):
    head, embedding = head_and_embedding(seed, dtype)
    # What is rounded once is rounded in both; torch then computes in float32.
    reference = TorchRunner(copy.deepcopy(head).float(), embedding.float(), SLOTS)
    return reference, NativeRunner(NativeHead(head, embedding, threads=1), SLOTS)


def ancestors(parents: list[int]) -> torch.Tensor:
    seen = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            seen[node] |= seen[parent]
    return seen


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 50), data=st.data())
def test_streams_and_logits_are_torchs(seed, data):
    counts = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    parents = [-1, -1, *data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=3))]
    for found, expected in compared(seed, torch.float32, counts, parents, last_only=data.draw(st.booleans())):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def test_bfloat16_is_off_by_little():
    """Some heads amplify a rounding; most of them do not."""
    errors = [
        float((found.float() - expected).norm() / expected.norm())
        for seed in range(12)
        for found, expected in compared(seed, torch.bfloat16, [3, 5, 2], [-1, -1, 0, 1, 0], last_only=bool(seed % 2))
    ]
    assert float(np.median(errors)) < 0.015


def compared(seed, dtype, counts, parents, *, last_only):
    """Streams and logits of both: over committed rows, then over two levels of a tree."""
    reference, native = runners(seed, dtype)
    torch.manual_seed(seed)
    position = 0
    for count in counts:
        features, following = torch.randn(count, 3 * WIDTH), torch.randint(0, VOCAB, (count,))
        positions = torch.arange(position, position + count)
        expected = reference.run(reference.fuse(features), following, positions, Behind(last_only=last_only))
        found = native.run(native.fuse(features), following, positions, Behind(last_only=last_only))
        yield from zip(found, expected, strict=True)
        position += count
        reference.length = native.length = position
    seen = ancestors(parents)
    for rows, sources in ((slice(0, 2), [-1, -1]), (slice(2, len(parents)), parents[2:])):
        following = torch.randint(0, VOCAB, (rows.stop - rows.start,))
        positions = torch.full_like(following, position)
        behind = Behind(last_only=False, mask=seen[rows, : rows.stop].contiguous())
        expected = reference.run(expected[0][sources], following, positions, behind)
        found = native.run(found[0][sources], following, positions, behind)
        yield from zip(found, expected, strict=True)
        position += 1


def test_trees_are_the_same_and_stay_so_after_forgetting():
    growth = Growth(depth=4, width=3, children=3, min_path_prob=0.0, level_gain=0.0)
    head, embedding = head_and_embedding(3)
    drafter = Eagle3Drafter(head, embedding, layers=8, growth=growth, threads=1)
    session, expected = drafter.begin(), begin(head, embedding, growth)
    assert isinstance(session._runner, NativeRunner)
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


def test_sizes_that_the_kernels_do_not_compute_go_to_torch():
    session = Eagle3Drafter(tiny_head(), tiny_embedding(), layers=8, threads=1).begin()
    assert isinstance(session._runner, TorchRunner)
    assert isinstance(session, Eagle3Session)
