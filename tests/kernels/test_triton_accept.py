"""Acceptance, truncation, compaction and merging on the device, under Triton's interpreter or on a GPU."""

import math
import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.drafters.tree import ROOT
from agentspec.kernels.acceptance import walk
from agentspec.kernels.ancestor_bits import pack_mask, unpack_bits
from agentspec.kernels.sampling import Sampler, Truncation
from agentspec.kernels.tree_mask import accepted_rows
from tests.kernels.attention_cases import row_mask
from tests.kernels.trees import draft_trees, tree_of

pytest.importorskip("triton")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU, or TRITON_INTERPRET=1 before triton is imported", allow_module_level=True)

from agentspec.kernels.triton.accept import NO_PARENT, DeviceSampling, Drawn, accept, draw_rows, follow_rows
from agentspec.kernels.triton.bits import pack_mask_into
from agentspec.kernels.triton.compaction import PathCompaction, compact_rows
from agentspec.kernels.triton.merge import merge_trees
from agentspec.kernels.triton.thresholds import support_thresholds

pytestmark = pytest.mark.sglang

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VOCAB = 6


def device_rows(trees, roots, width):
    tokens = torch.zeros(len(trees), width, dtype=torch.int64)
    parents = torch.full((len(trees), width), NO_PARENT, dtype=torch.int32)
    for b, tree in enumerate(trees):
        tokens[b, 0], parents[b, 0] = roots[b], -1
        tokens[b, 1 : len(tree) + 1] = torch.from_numpy(tree.tokens)
        parents[b, 1 : len(tree) + 1] = torch.from_numpy(tree.parents) + 1
    return tokens.to(DEVICE), parents.to(DEVICE)


def row_positions(trees, starts, width):
    """Tokens before the one drawn at every row."""
    positions = torch.zeros(len(trees), width, dtype=torch.int64)
    for b, tree in enumerate(trees):
        depths = np.concatenate([[0], tree.depths()])
        positions[b, : len(depths)] = torch.from_numpy(depths) + starts[b]
    return positions


def reference(tree, logits, position, sampler):
    """The verdict of one request by the definition: draws along one path, in order."""
    depths = np.concatenate([[0], tree.depths()])
    return walk(
        tree,
        lambda node: sampler.draw(logits[node + 1], position + int(depths[node + 1])).token,
        lambda token: False,
    )


def check(verdict, b, expected):
    count = int(verdict.counts[b])
    assert count == len(expected.tokens)
    assert verdict.tokens[b].tolist() == [*expected.tokens, *[-1] * (verdict.tokens.shape[1] - count)]
    path = accepted_rows(expected.path).tolist()
    assert verdict.path[b].tolist() == [*path, *[-1] * (verdict.path.shape[1] - count)]


@settings(deadline=None, max_examples=30)
@given(
    trees=st.lists(draft_trees(VOCAB), min_size=1, max_size=3),
    padding=st.integers(0, 3),
    seed=st.integers(-(2**63), 2**63 - 1),
    temperatures=st.lists(st.sampled_from([0.0, 0.3, 1.0, 2.5]), min_size=3, max_size=3),
)
def test_paths_and_tokens_are_those_of_the_definition(trees, padding, seed, temperatures):
    """With few tokens, draws often fall on drafted ones, so that paths are followed."""
    width = max(map(len, trees)) + 1 + padding
    starts = [1000 * b + 7 for b in range(len(trees))]
    logits = torch.randn(len(trees) * width, VOCAB, generator=torch.Generator().manual_seed(seed % 997))
    draw = DeviceSampling(
        torch.tensor(temperatures[: len(trees)]).to(DEVICE),
        torch.full((len(trees),), seed, device=DEVICE),
        row_positions(trees, starts, width).to(DEVICE),
    )
    verdict = accept(logits.to(DEVICE), *device_rows(trees, [0] * len(trees), width), draw)
    for b, tree in enumerate(trees):
        sampler = Sampler(seed, temperatures[b])
        check(verdict, b, reference(tree, logits[b * width : (b + 1) * width], starts[b], sampler))


def test_a_vocabulary_of_many_parts_draws_the_same_tokens():
    """More than two programs per row, the last one not full; and the highest token can be drawn."""
    vocab, rows = 40_000, 6
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(1))
    logits[3, vocab - 1] = 30.0
    tree = tree_of([(node - 1, 0) for node in range(rows - 1)])
    positions = row_positions([tree], [50], rows)
    for temperature in (0.0, 0.8):
        draw = DeviceSampling(
            torch.tensor([temperature], device=DEVICE), torch.tensor([11], device=DEVICE), positions.to(DEVICE)
        )
        got = []
        for row in range(rows):  # a request of one row each
            one = DeviceSampling(draw.temperatures, draw.seeds, draw.positions[:, row : row + 1].contiguous())
            tokens, parents = device_rows([tree_of([])], [0], 1)
            got.append(int(accept(logits[row : row + 1].to(DEVICE), tokens, parents, one).tokens[0, 0]))
        expected = [Sampler(11, temperature).draw(logits[row], 50 + row).token for row in range(rows)]
        assert got == expected
        assert got[3] == vocab - 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_logits_draw_nothing(bad, temperature):
    logits = torch.zeros(1, VOCAB)
    logits[0, 2 if bad != -math.inf else slice(None)] = bad
    tokens, parents = device_rows([tree_of([])], [0], 1)
    draw = DeviceSampling(
        torch.tensor([temperature], device=DEVICE),
        torch.tensor([0], device=DEVICE),
        torch.tensor([[5]], device=DEVICE),
    )
    verdict = accept(logits.to(DEVICE), tokens, parents, draw)
    assert verdict.tokens.tolist() == [[-1]]
    assert verdict.counts.tolist() == [1]


def test_drawn_tokens_are_distributed_as_the_softmax():
    """Chi-square over 600 positions; 5 degrees of freedom, chance of a false alarm 1 in 10,000."""
    draws = 600
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0, 0.5, -0.5])
    tokens = torch.zeros(draws, 1, dtype=torch.int64, device=DEVICE)
    parents = torch.full((draws, 1), -1, dtype=torch.int32, device=DEVICE)
    draw = DeviceSampling(
        torch.full((draws,), 0.9, device=DEVICE),
        torch.full((draws,), 42, device=DEVICE),
        torch.arange(draws, device=DEVICE)[:, None].contiguous(),
    )
    verdict = accept(logits.repeat(draws, 1).to(DEVICE), tokens, parents, draw)
    counts = torch.bincount(verdict.tokens.flatten().cpu(), minlength=VOCAB).double()
    expected = (logits / 0.9).double().softmax(-1) * draws
    assert float(((counts - expected) ** 2 / expected).sum()) < 25.74


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 9999),
    top_k=st.integers(0, 12),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 0.9]),
    ties=st.booleans(),
)
def test_thresholds_keep_what_truncation_keeps(seed, top_k, top_p, min_p, ties):
    scaled = 3 * torch.randn(4, 10, generator=torch.Generator().manual_seed(seed))
    if ties:
        scaled = scaled.round()
    thresholds = support_thresholds(scaled, torch.full((4,), top_k), torch.full((4,), top_p), torch.full((4,), min_p))
    for row, threshold in zip(scaled, thresholds, strict=True):
        support = Truncation(top_k, top_p, min_p).support(row)
        expected = torch.arange(10) if support is None else support
        assert torch.nonzero(row >= threshold)[:, 0].tolist() == expected.tolist()


@settings(deadline=None, max_examples=20)
@given(tree=draft_trees(VOCAB), seed=st.integers(0, 9999), top_k=st.integers(1, 4))
def test_truncated_draws_are_those_of_the_definition(tree, seed, top_k):
    width = len(tree) + 1
    logits = torch.randn(width, VOCAB, generator=torch.Generator().manual_seed(seed))
    rows = torch.full((width,), top_k)
    thresholds = support_thresholds(logits / 0.7, rows, torch.full((width,), 0.8), torch.zeros(width))
    draw = DeviceSampling(
        torch.tensor([0.7], device=DEVICE),
        torch.tensor([seed], device=DEVICE),
        row_positions([tree], [3], width).to(DEVICE),
        thresholds[None].to(DEVICE),
    )
    verdict = accept(logits.to(DEVICE), *device_rows([tree], [0], width), draw)
    check(verdict, 0, reference(tree, logits, 3, Sampler(seed, 0.7, Truncation(top_k, 0.8))))


@settings(deadline=None, max_examples=30)
@given(data=st.data(), dtype=st.sampled_from([torch.float16, torch.float32, torch.float8_e4m3fn]))
def test_compaction_moves_accepted_rows_and_nothing_else(data, dtype):
    batch, width, slots = 2, 6, 20
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 999)))
    caches = [torch.randn(slots, 2, 8, generator=generator).to(dtype).to(DEVICE) for _ in range(3)]
    where = torch.randperm(slots, generator=generator)[: batch * width].view(batch, width)
    path = torch.full((batch, width), -1, dtype=torch.int32)
    counts = torch.empty(batch, dtype=torch.int32)
    expected = [one.clone() for one in caches]
    for b in range(batch):
        rows = [0, *sorted(data.draw(st.sets(st.integers(1, width - 1))))]
        path[b, : len(rows)], counts[b] = torch.tensor(rows), len(rows)
        for before, after in zip(caches, expected, strict=True):
            after[where[b, : len(rows)]] = before[where[b, rows]]
    through_batch = data.draw(st.booleans())
    if through_batch:
        path = torch.where(path < 0, -1, path + torch.arange(batch, dtype=torch.int32)[:, None] * width)
    PathCompaction(caches)(where.to(DEVICE), path.to(DEVICE), counts.to(DEVICE), through_batch=through_batch)
    for got, right in zip(caches, expected, strict=True):
        assert torch.equal(got.view(torch.uint8), right.view(torch.uint8))


@settings(deadline=None, max_examples=30)
@given(trees=st.lists(draft_trees(VOCAB), min_size=1, max_size=3), seed=st.integers(0, 9999), by_other=st.booleans())
def test_paths_by_row_are_the_same_paths(trees, seed, by_other):
    """The layout for engines that keep rows of the whole batch; draws are this module's or another sampler's."""
    batch, width = len(trees), max(map(len, trees)) + 1
    logits = torch.randn(batch * width, VOCAB, generator=torch.Generator().manual_seed(seed)).to(DEVICE)
    zeros = torch.zeros(batch, width, dtype=torch.int64, device=DEVICE)
    draw = DeviceSampling(torch.zeros(batch, device=DEVICE), zeros[:, 0].contiguous(), zeros)
    tokens, parents = device_rows(trees, [0] * batch, width)
    expected = accept(logits, tokens, parents, draw)
    drawn = Drawn.of(logits.argmax(-1)) if by_other else draw_rows(logits, width, draw)
    found = follow_rows(drawn, tokens, parents)
    assert torch.equal(found.counts, expected.counts)
    base = torch.arange(batch, device=DEVICE)[:, None] * width
    assert torch.equal(found.path, torch.where(expected.path < 0, -1, expected.path + base).int())
    for b in range(batch):
        count = int(found.counts[b])
        on_path = found.path[b, :count].long()
        assert found.tokens[on_path].tolist() == expected.tokens[b, :count].tolist()
    assert int((found.tokens != 0).sum()) <= int(found.counts.sum())
    rows = torch.randn(batch * width, 3, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    before = rows.clone()
    compact_rows(rows, found.path, found.counts)
    for b in range(batch):
        count = int(found.counts[b])
        assert torch.equal(rows[b * width : b * width + count], before[found.path[b, :count].long()])
        assert torch.equal(rows[b * width + count : (b + 1) * width], before[b * width + count : (b + 1) * width])


def test_where_everything_is_excluded_rows_draw_as_torch_does():
    logits = torch.full((2, VOCAB), -math.inf, device=DEVICE)
    logits[1, 3] = math.inf
    zeros = torch.zeros(2, 1, dtype=torch.int64, device=DEVICE)
    draw = DeviceSampling(torch.zeros(2, device=DEVICE), zeros[:, 0].contiguous(), zeros)
    tokens, parents = device_rows([tree_of([])] * 2, [0, 0], 1)
    verdict = follow_rows(draw_rows(logits, 1, draw), tokens, parents)
    assert verdict.tokens.tolist() == logits.argmax(-1).tolist() == [0, 3]


def test_compaction_refuses_caches_that_it_cannot_address():
    with pytest.raises(ValueError, match="contiguous"):
        PathCompaction([torch.zeros(4, 8).T])
    with pytest.raises(ValueError, match="one size"):
        PathCompaction([torch.zeros(4, 8), torch.zeros(4, 4)])
    counts = torch.ones(1, dtype=torch.int32)
    with pytest.raises(ValueError, match="multiple of 4 bytes"):
        compact_rows(torch.zeros(4, 3, dtype=torch.float16), torch.zeros(1, 4, dtype=torch.int32), counts)


def merged_by_hand(trees, width):
    """(token, parent row) of every row after the root, trees one after the other."""
    rows, known = [], {}
    for tree in trees:
        place = {ROOT: 0}
        for node, (parent, token) in enumerate(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True)):
            if parent not in place:
                continue
            edge = (place[parent], token)
            if edge not in known and len(rows) + 1 < width:
                rows.append((token, place[parent]))
                known[edge] = len(rows)
            if edge in known:
                place[node] = known[edge]
    return rows


def moved_parents(parents, places):
    """Parents as indices of nodes that lie at `places`."""
    moved = places.gather(1, parents.clamp(min=0).long()).int()
    return torch.where(parents < 0, -1, moved)


@settings(deadline=None, max_examples=40)
@given(
    groups=st.lists(st.lists(draft_trees(3, max_nodes=7), min_size=1, max_size=3), min_size=1, max_size=2),
    width=st.sampled_from([1, 4, 9, 70]),
    seed=st.integers(0, 99),
)
def test_merged_trees_are_the_union_in_order(groups, width, seed):
    nodes = max(sum(map(len, trees)) for trees in groups) + 1
    tokens = torch.full((len(groups), nodes), -1, dtype=torch.int32)
    parents = torch.full((len(groups), nodes), -1, dtype=torch.int32)
    for b, trees in enumerate(groups):
        offset = 0
        for tree in trees:
            here = slice(offset, offset + len(tree))
            tokens[b, here] = torch.from_numpy(tree.tokens)
            parents[b, here] = torch.from_numpy(np.where(tree.parents < 0, -1, tree.parents + offset))
            offset += len(tree)
    roots = torch.arange(len(groups)) + 50
    # Nodes are shuffled in memory; `order` has them in turn again.
    places = torch.stack(
        [torch.randperm(nodes, generator=torch.Generator().manual_seed(seed + b)) for b in range(len(groups))]
    )
    shuffled = [torch.empty_like(tokens).scatter_(1, places, one) for one in (tokens, moved_parents(parents, places))]
    merged = merge_trees(roots.to(DEVICE), *(one.to(DEVICE) for one in (*shuffled, places)), width)
    for b, trees in enumerate(groups):
        rows = merged_by_hand(trees, width)
        union = tree_of([(parent - 1, token) for token, parent in rows])
        count = len(rows) + 1
        assert int(merged.counts[b]) == count
        assert merged.tokens[b, :count].tolist() == [50 + b, *(token for token, _ in rows)]
        assert merged.parents[b].tolist() == [-1, *(p for _, p in rows), *[NO_PARENT] * (width - count)]
        assert merged.depths[b, :count].tolist() == [0, *union.depths().tolist()]
        assert torch.equal(unpack_bits(merged.bits[b].cpu(), width), row_mask(union, width))
        origins = merged.origins[b].cpu()
        assert origins[0] == -1
        assert shuffled[0][b][origins[1:count].long()].tolist() == merged.tokens[b, 1:count].tolist()
        assert len(set(origins[1:count].tolist())) == count - 1
        assert origins[count:].tolist() == [-1] * (width - count)


def test_a_node_before_its_parent_is_left_out():
    tokens, parents = torch.tensor([[5, 6, 7]], dtype=torch.int32), torch.tensor([[1, -1, -1]], dtype=torch.int32)
    order = torch.tensor([[0, 1, 2]])
    merged = merge_trees(*(one.to(DEVICE) for one in (torch.tensor([9]), tokens, parents, order)), 4)
    assert merged.tokens[0, : int(merged.counts[0])].tolist() == [9, 6, 7]


@settings(deadline=None, max_examples=15)
@given(trees=st.lists(draft_trees(3, max_nodes=9), min_size=1, max_size=2), width=st.sampled_from([10, 64, 65, 130]))
def test_masks_are_packed_as_by_the_definition(trees, width):
    masks = torch.stack([row_mask(tree, width) for tree in trees])
    masks[0, -1] = True  # the highest bit of every word
    expected = pack_mask(masks).flatten(0, 1)
    out = torch.full((len(expected) + 1, expected.shape[1]), 7, dtype=torch.int64, device=DEVICE)
    pack_mask_into(masks.to(DEVICE), out)
    assert torch.equal(out[:-1].cpu(), expected)
    assert out[-1].eq(7).all()
