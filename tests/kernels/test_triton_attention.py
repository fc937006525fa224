"""Tree attention in Triton against the float64 reference, under Triton's interpreter or on a GPU."""

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.kernels import paged_tree_attention as reference
from tests.kernels.attention_cases import cases, make_case
from tests.kernels.trees import tree_of

pytest.importorskip("triton")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU, or TRITON_INTERPRET=1 before triton is imported", allow_module_level=True)

from agentspec.kernels.triton.tree_attention import paged_tree_attention

pytestmark = pytest.mark.sglang

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def run(case, dtype, splits):
    batch = reference.PagedBatch(
        case.batch.page_indptr.to(DEVICE),
        case.batch.page_indices.to(DEVICE),
        case.batch.last_page_lengths.to(DEVICE),
        case.batch.page_size,
    )
    cache = tuple(one.to(dtype).to(DEVICE) for one in case.cache)
    output, sums = paged_tree_attention(
        case.query.to(dtype).to(DEVICE), cache, batch, case.bits.to(DEVICE), case.rules, splits
    )
    return output.cpu().double(), sums.cpu().double()


@settings(deadline=None, max_examples=25)
@given(case=cases(max_prefix=150), splits=st.sampled_from([1, 2, 5]))
def test_equals_the_reference(case, splits):
    expected, expected_sums = reference.paged_tree_attention(*case.arguments)
    output, sums = run(case, torch.float32, splits)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(sums, expected_sums, rtol=0, atol=1e-5)


@pytest.mark.parametrize("window", [-1, 20])
def test_trees_of_more_than_one_word_and_more_than_one_tile(window):
    """90 rows of three heads per key head: five query tiles, two words of bits."""
    tree = tree_of([(max(-1, node - 1 - node % 3), node) for node in range(89)])
    case = make_case([tree, tree], [100, 33], groups=3, window=window)
    expected, _ = reference.paged_tree_attention(*case.arguments)
    output, _ = run(case, torch.float32, 3)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-5)


def test_half_precision():
    case = make_case([tree_of([(-1, 1), (0, 2), (0, 3)])], [77], groups=2)
    expected, _ = reference.paged_tree_attention(*case.arguments)
    output, _ = run(case, torch.float16, 2)
    torch.testing.assert_close(output, expected, rtol=0, atol=4e-3)
