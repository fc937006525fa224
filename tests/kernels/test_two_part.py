import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.kernels.ancestor_bits import distances, pack_mask, unpack_bits, words_for
from agentspec.kernels.paged_tree_attention import ScoreRules, paged_prefix_attention, paged_tree_attention
from agentspec.kernels.tree_attention import tree_attention
from agentspec.kernels.two_part_attention import merge_states, split_tail, two_part_attention
from tests.kernels.attention_cases import cases, make_case, row_mask
from tests.kernels.trees import draft_trees, tree_of


def naive(case):
    """Every score by itself, visibility by walking from each node to the root."""
    width = len(case.masks[0])
    group = case.query.shape[1] // case.cache[0].shape[1]
    outputs, sums = [], []
    for b, (slots, mask, prefix) in enumerate(zip(case.batch.slots(), case.masks, case.prefixes, strict=True)):
        keys, values = (one[slots] for one in case.cache)
        depth = [int(line.sum()) - 1 for line in mask]
        position = [*range(prefix), *(prefix + one for one in depth)]
        for i in range(width):
            for head in range(case.query.shape[1]):
                weights, total = torch.zeros(case.query.shape[2], dtype=torch.float64), 0.0
                for k in range(len(slots)):
                    seen = k < prefix or bool(mask[i, k - prefix])
                    if case.rules.window >= 0:
                        seen = seen and position[prefix + i] - position[k] <= case.rules.window
                    if not seen:
                        continue
                    score = float(case.query[b * width + i, head] @ keys[k, head // group]) * case.rules.scale
                    if case.rules.soft_cap:
                        score = case.rules.soft_cap * math.tanh(score / case.rules.soft_cap)
                    weights += math.exp(score) * values[k, head // group]
                    total += math.exp(score)
                outputs.append(weights / total)
                sums.append(math.log2(total))
    return torch.stack(outputs).view(case.query.shape), torch.tensor(sums, dtype=torch.float64).view(
        case.query.shape[:2]
    )


@given(tree=draft_trees(5, max_nodes=20), padding=st.integers(0, 60))
def test_bits_hold_the_mask(tree, padding):
    mask = row_mask(tree, len(tree) + 1 + padding)
    bits = pack_mask(mask)
    assert bits.shape == (len(mask), words_for(len(mask)))
    assert torch.equal(unpack_bits(bits, len(mask)), mask)


@given(tree=draft_trees(5, max_nodes=20))
def test_bits_are_those_of_the_tree_behind_the_root(tree):
    """Row n + 1 holds the tree's own bit set of node n, shifted by the root's bit, which every row has."""
    bits = pack_mask(row_mask(tree, len(tree) + 1))[1:, 0].numpy()
    assert bits.tolist() == [int(bits << np.uint64(1)) | 1 for bits in tree.ancestor_bits().reshape(-1)]


def test_the_highest_bit_of_a_word_is_a_bit_like_the_others():
    mask = torch.ones(130, 130, dtype=torch.bool).tril()
    bits = pack_mask(mask)
    assert bits.shape == (130, 3)
    assert bits[63].tolist() == [-1, 0, 0]
    assert torch.equal(unpack_bits(bits, 130), mask)


@given(tree=draft_trees(5, max_nodes=20))
def test_distances_are_differences_of_depth(tree):
    mask = row_mask(tree, len(tree) + 1)
    depth = torch.from_numpy(np.concatenate([[0], tree.depths()]))
    expected = depth[:, None] - depth
    assert torch.equal(distances(mask)[mask], expected[mask])


@settings(deadline=None, max_examples=20)
@given(case=cases(max_nodes=6, max_prefix=6, dim=4))
def test_the_paged_reference_equals_the_naive_sum(case):
    output, log_sum = paged_tree_attention(*case.arguments)
    expected, expected_sum = naive(case)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(log_sum, expected_sum, rtol=0, atol=1e-12)


@settings(deadline=None)
@given(case=cases(windows=False))
def test_the_paged_reference_equals_the_plain_one(case):
    rules = ScoreRules(case.rules.scale)
    width = len(case.masks[0])
    output, _ = paged_tree_attention(*case.arguments[:4], rules)
    for b, (slots, mask, prefix) in enumerate(zip(case.batch.slots(), case.masks, case.prefixes, strict=True)):
        keys, values = (one[slots].transpose(0, 1) for one in case.cache)
        rows = slice(b * width, (b + 1) * width)
        expected = tree_attention(
            case.query[rows].transpose(0, 1),
            (keys[:, :prefix], values[:, :prefix]),
            (keys[:, prefix:], values[:, prefix:]),
            mask,
        )
        torch.testing.assert_close(output[rows].transpose(0, 1), expected, rtol=0, atol=1e-12)


@settings(deadline=None)
@given(case=cases(windows=False))
def test_two_parts_equal_one(case):
    for got, expected in zip(two_part_attention(*case.arguments), paged_tree_attention(*case.arguments), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def test_an_empty_part_changes_nothing():
    case = make_case([tree_of([(-1, 1), (0, 2)])], [0])
    prefix, _ = split_tail(case.batch, 3)
    over_nothing = paged_prefix_attention(case.query, case.cache, prefix, case.rules)
    assert torch.equal(over_nothing[0], torch.zeros_like(case.query))
    assert bool((over_nothing[1] == -torch.inf).all())
    something = paged_tree_attention(*case.arguments)
    for parts in ((over_nothing, something), (something, over_nothing)):
        merged = merge_states(*map(torch.stack, zip(*parts, strict=True)))
        torch.testing.assert_close(merged, something, rtol=0, atol=0)
    nothing = merge_states(*map(torch.stack, zip(over_nothing, over_nothing, strict=True)))
    torch.testing.assert_close(nothing, over_nothing, rtol=0, atol=0)


def test_a_window_is_refused_in_two_parts():
    case = make_case([tree_of([(-1, 1)])], [4], window=2)
    with pytest.raises(ValueError, match="no sliding window"):
        two_part_attention(*case.arguments)


def test_a_cache_shorter_than_the_rows_is_refused():
    case = make_case([tree_of([(-1, 1)])], [0])
    with pytest.raises(ValueError, match="request 0 has 2 tokens, fewer than the 3 rows"):
        split_tail(case.batch, 3)
