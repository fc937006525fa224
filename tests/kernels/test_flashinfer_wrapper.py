"""FlashInfer's real wrappers around our variant, up to the call of the compiled kernel, which torch stands in for."""

from importlib import import_module

import pytest
import torch

from agentspec.kernels.flashinfer_tree.variant import TreeVariant
from agentspec.kernels.paged_tree_attention import (
    PagedBatch,
    ScoreRules,
    paged_prefix_attention,
    paged_tree_attention,
)
from agentspec.kernels.two_part_attention import merge_states
from tests.kernels.attention_cases import make_case
from tests.kernels.trees import tree_of

pytestmark = pytest.mark.sglang

CAUSAL, CUSTOM = 1, 2
WIDTH = 5
TREES = [tree_of([(-1, 1), (0, 2), (0, 3), (2, 4)]), tree_of([(-1, 1), (-1, 2)])]


class Module:
    """What FlashInfer compiles and loads: keeps its calls and computes with torch."""

    def __init__(self):
        self.planned, self.modes, self.extra = [], [], []

    def plan(self, *arguments):
        self.planned.append(arguments)
        return [0]

    def paged_run(self, *arguments):
        _, _, _, q, keys, values, _, indptr, indices, last, out, lse, mode, _, window_left, _, *extra = arguments
        self.modes.append(mode)
        self.extra.append(extra)
        assert window_left == -1, "FlashInfer's window counts rows"
        cache = tuple(one.flatten(0, 1).double() for one in (keys, values))
        batch = PagedBatch(indptr, indices, last, keys.shape[1])
        if len(extra) == 5:
            bits, words, window, scale, cap = extra
            assert words == bits.shape[1]
            result = paged_tree_attention(q.double(), cache, batch, bits[: len(q)], ScoreRules(scale, cap, window))
        else:  # the prefix of the two parts, in FlashInfer's own form
            assert mode == 0
            result = paged_prefix_attention(q.double(), cache, batch, ScoreRules(extra[7], extra[6]))
        out.copy_(result[0])
        if lse is not None:
            lse.copy_(result[1])


@pytest.fixture
def module(monkeypatch):
    prefill = import_module("flashinfer.prefill")
    made = Module()
    monkeypatch.setattr(prefill, "get_customize_batch_prefill_module", lambda *_, **__: made)
    monkeypatch.setattr(prefill, "get_batch_prefill_jit_module", lambda _, module: module)
    monkeypatch.setattr(prefill, "get_batch_prefill_module", lambda *_, **__: made)
    monkeypatch.setattr(prefill, "_get_cache_alibi_slopes_buf", lambda *_: None)
    monkeypatch.setattr(prefill, "device_support_pdl", lambda _: False)
    empty = torch.empty

    def without_pinning(*sizes, pin_memory=False, **options):
        return empty(*sizes, **options)

    monkeypatch.setattr(prefill.torch, "empty", without_pinning)
    return made


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
    wrapper = import_module("agentspec.kernels.flashinfer_tree.wrapper")
    assert wrapper.fits_one_tile(width, group, head_dim) is fits


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


def test_two_parts_on_flashinfer(module, monkeypatch):
    two_part = import_module("agentspec.kernels.flashinfer_tree.two_part")

    def merge(one, one_sum, two, two_sum):
        return merge_states(torch.stack([one, two]).double(), torch.stack([one_sum, two_sum]).double())

    monkeypatch.setattr(two_part, "merge_state", merge)
    case, query, cache = step()
    workspaces = tuple(torch.empty(1 << 10, dtype=torch.uint8) for _ in range(2))
    variant = TreeVariant(torch.bfloat16, torch.bfloat16, 64)
    wrapper = two_part.TwoPartWrapper(workspaces, variant, case.bits, backend="fa2")
    wrapper.plan(torch.arange(0, 2 * WIDTH + 1, WIDTH, dtype=torch.int32), case.batch, 4, 2, case.rules)
    got = wrapper.run(query, cache)
    flat = tuple(one.flatten(0, 1).double() for one in cache)
    expected, _ = paged_tree_attention(query.double(), flat, case.batch, case.bits, case.rules)
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=2e-2)
    with pytest.raises(ValueError, match="no sliding window"):
        two_part.TwoPartWrapper(workspaces, TreeVariant(torch.bfloat16, torch.bfloat16, 64, window=True), case.bits)
