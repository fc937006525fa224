"""FlashInfer's real wrappers around our variant, up to the call of the compiled kernel, which torch stands in for."""

from importlib import import_module

import pytest
import torch

from agentspec.kernels.flashinfer_tree.variant import TreeVariant
from agentspec.kernels.paged_tree_attention import ScoreRules, paged_tree_attention
from agentspec.kernels.verify_kernels import VerifyKernel, exact_kernels, fits_one_tile
from tests.kernels.attention_cases import make_case
from tests.kernels.flashinfer_module import CAUSAL, CUSTOM, install
from tests.kernels.trees import tree_of

pytestmark = pytest.mark.sglang

WIDTH = 5
TREES = [tree_of([(-1, 1), (0, 2), (0, 3), (2, 4)]), tree_of([(-1, 1), (-1, 2)])]


@pytest.fixture
def module(monkeypatch):
    return install(monkeypatch)


def step(**changes):
    case = make_case(TREES, [9, 14], dim=64, groups=2, padding=WIDTH - 5, **changes)
    query = case.query.bfloat16()
    page = case.batch.page_size
    cache = tuple(one.nan_to_num().bfloat16().view(-1, page, *one.shape[1:]) for one in case.cache)
    return case, query, cache


def wrapper_of(case, variant, **arguments):
    wrapper = import_module("agentspec.kernels.flashinfer_tree.wrapper")
    return wrapper.TreeAttentionWrapper(torch.empty(1 << 10, dtype=torch.uint8), variant, case.bits, **arguments)


def plan(wrapper, case, **arguments):
    rows = torch.arange(0, 2 * WIDTH + 1, WIDTH, dtype=torch.int32)
    batch = case.batch
    wrapper.begin_forward(
        rows,
        batch.page_indptr,
        batch.page_indices,
        batch.last_page_lengths,
        4,
        2,
        64,
        batch.page_size,
        q_data_type=torch.bfloat16,
        kv_data_type=torch.bfloat16,
        **arguments,
    )


@pytest.mark.parametrize("page", [1, 4])
@pytest.mark.parametrize("window", [-1, 3])
@pytest.mark.parametrize("cap", [0.0, 20.0])
def test_the_kernel_is_called_with_the_trees_of_the_step(module, page, window, cap):
    case, query, cache = step(page=page, soft_cap=cap, window=window)
    variant = TreeVariant(torch.bfloat16, torch.bfloat16, 64, soft_cap=cap > 0, window=window >= 0)
    wrapper = wrapper_of(case, variant)
    plan(wrapper, case, custom_mask=torch.ones(1, dtype=torch.bool).expand(10**9))
    got = wrapper.forward(
        query, cache, causal=True, sm_scale=0.5, logits_soft_cap=cap, window_left=window, k_scale=0.25
    )
    flat = tuple(one.flatten(0, 1).double() for one in cache)
    expected, _ = paged_tree_attention(query.double(), flat, case.batch, case.bits, ScoreRules(0.125, cap, window))
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=2e-2)
    assert module.modes == [CUSTOM]
    assert module.extra[0][0].data_ptr() == case.bits.data_ptr(), "a graph reads the buffer where it lies"


def test_new_trees_need_no_new_plan(module):
    case, query, cache = step()
    wrapper = wrapper_of(case, TreeVariant(torch.bfloat16, torch.bfloat16, 64))
    plan(wrapper, case)
    before = wrapper.forward(query, cache, sm_scale=0.125)
    case.bits[1:] = 1  # every row but the first now sees the root alone
    after = wrapper.forward(query, cache, sm_scale=0.125)
    assert len(module.planned) == 1
    assert not torch.equal(before, after)


def test_the_diagonal_mode_is_flashinfers_causal_one(module):
    case, query, cache = step()
    wrapper = wrapper_of(case, TreeVariant(torch.bfloat16, torch.bfloat16, 64), diagonal=True)
    plan(wrapper, case)
    wrapper.forward(query, cache, sm_scale=0.125, causal=False)
    assert module.modes == [CAUSAL]


@pytest.mark.parametrize(
    ("width", "group", "head_dim", "fits"),
    [(32, 4, 128, True), (33, 4, 128, False), (16, 4, 256, True), (17, 4, 256, False)],
)
def test_one_tile_holds_pairs_of_rows_and_heads(width, group, head_dim, fits):
    assert fits_one_tile(width, group, head_dim) is fits


def test_what_was_not_compiled_in_is_refused(module):
    case, query, cache = step()
    plain = TreeVariant(torch.bfloat16, torch.bfloat16, 64)
    wrapper = wrapper_of(case, plain)
    plan(wrapper, case)
    with pytest.raises(ValueError, match="no sliding window, and 7 was asked for"):
        wrapper.forward(query, cache, window_left=7)
    with pytest.raises(ValueError, match=r"soft cap of 30\.0"):
        wrapper.forward(query, cache, logits_soft_cap=30.0)
    with pytest.raises(ValueError, match="diagonal mode has no sliding window"):
        wrapper_of(case, TreeVariant(torch.bfloat16, torch.bfloat16, 64, window=True), diagonal=True)


def expected_of(case, query, cache, rules):
    flat = tuple(one.flatten(0, 1).double() for one in cache)
    return paged_tree_attention(query.double(), flat, case.batch, case.bits, rules)[0]


@pytest.mark.parametrize("backend", ["fa2", "fa3"])
@pytest.mark.parametrize("cap", [0.0, 20.0])
def test_two_parts_are_one(module, backend, cap):
    """The variant sees the rows alone, and the prefix goes without a mask to the backend that is asked for."""
    two_part = import_module("agentspec.kernels.flashinfer_tree.two_part")
    case, query, cache = step(soft_cap=cap)
    variant = TreeVariant(torch.bfloat16, torch.bfloat16, 64, soft_cap=cap > 0)
    workspace = torch.empty(1 << 10, dtype=torch.uint8)
    wrapper = two_part.TwoPartWrapper(workspace, variant, case.bits, prefix_backend=backend)
    plan(wrapper, case, custom_mask=torch.ones(1, dtype=torch.bool))
    got = wrapper.forward(query, cache, causal=True, sm_scale=0.5, logits_soft_cap=cap, window_left=-1, k_scale=0.25)
    torch.testing.assert_close(got.double(), expected_of(case, query, cache, ScoreRules(0.125, cap)), rtol=0, atol=2e-2)
    assert module.backends == [backend]
    prefix, tail = module.planned
    assert prefix[4].tolist() == [0, 9, 23]
    assert tail[4].tolist() == [0, WIDTH, 2 * WIDTH]
    assert module.modes == [0, CUSTOM]


def test_two_parts_refuse_what_crosses_their_border(module):
    two_part = import_module("agentspec.kernels.flashinfer_tree.two_part")
    workspace = torch.empty(1 << 10, dtype=torch.uint8)
    case, _, _ = step(page=4)
    with pytest.raises(ValueError, match="no sliding window"):
        two_part.TwoPartWrapper(workspace, TreeVariant(torch.bfloat16, torch.bfloat16, 64, window=True), case.bits)
    with pytest.raises(ValueError, match="prefix_indices"):
        two_part.TwoPartWrapper(
            workspace, TreeVariant(torch.bfloat16, torch.bfloat16, 64), case.bits, use_cuda_graph=True
        )
    wrapper = two_part.TwoPartWrapper(workspace, TreeVariant(torch.bfloat16, torch.bfloat16, 64), case.bits)
    with pytest.raises(ValueError, match="pages of one token"):
        plan(wrapper, case)


@pytest.mark.parametrize("kernel", ["owned", "two_part"])
@pytest.mark.parametrize("page", [1, 4])
def test_a_known_layout_spares_the_device_a_question(module, kernel, page):
    """The device's index pointers are wrong on purpose: with a layout of the host's they must not be looked at."""
    if (kernel, page) == ("two_part", 4):
        pytest.skip("two parts need pages of one token")
    choice = import_module("agentspec.kernels.flashinfer_tree.choice")
    layout = import_module("agentspec.kernels.flashinfer_tree.host_layout").HostLayout
    case, query, cache = step(page=page)
    workspace = torch.empty(1 << 10, dtype=torch.uint8)
    variant = TreeVariant(torch.bfloat16, torch.bfloat16, 64)
    wrapper = choice.make_wrapper(VerifyKernel(kernel), workspace, variant, case.bits)
    wrapper.host_layout = layout(WIDTH, case.batch.kv_lengths())
    indptr, last = case.batch.page_indptr.clone(), case.batch.last_page_lengths.clone()
    case.batch.page_indptr.fill_(7)
    case.batch.last_page_lengths.fill_(3)
    plan(wrapper, case)
    case.batch.page_indptr.copy_(indptr)
    case.batch.last_page_lengths.copy_(last)
    got = wrapper.forward(query, cache, sm_scale=0.125)
    torch.testing.assert_close(got.double(), expected_of(case, query, cache, ScoreRules(0.125)), rtol=0, atol=2e-2)


def test_where_each_kernel_is_exact():
    plain = TreeVariant(torch.bfloat16, torch.bfloat16, 128)
    assert exact_kernels(plain, 32, 4) == frozenset(VerifyKernel)
    assert VerifyKernel.DIAGONAL not in exact_kernels(plain, 33, 4)
    narrow = TreeVariant(torch.bfloat16, torch.float8_e4m3fn, 128)
    assert VerifyKernel.TWO_PART_FA3 not in exact_kernels(narrow, 8, 4)
    windowed = TreeVariant(torch.bfloat16, torch.bfloat16, 128, window=True)
    assert exact_kernels(windowed, 8, 1) == {VerifyKernel.OWNED}
