"""The attention kernels that are compared. Each is planned for a step once and then run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from agentspec.kernels.two_part_attention import two_part_attention

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.device.inputs import VerifyStep

    Plan = Callable[[VerifyStep], Callable[[], torch.Tensor]]
    """Prepares a step; what it returns computes the output `[B * W, heads, head_dim]`."""

WORKSPACE_BYTES = 256 << 20

EXACT = frozenset({"tree", "tree_diagonal", "two_part", "stock_mask", "triton"})
"""Contenders that compute tree attention; `causal` is the bound that they are compared with."""


def contenders(device: str) -> dict[str, Plan]:
    """By name: FlashInfer's and ours on a GPU; on a CPU those that run there."""
    if device == "cpu":
        return {"two_part": _torch_two_part, "triton": _triton}
    workspaces = [torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device) for _ in range(2)]
    return {
        "causal": lambda step: _stock(step, workspaces[0], causal=True),
        "stock_mask": lambda step: _stock(step, workspaces[0], causal=False),
        "tree": lambda step: _tree(step, workspaces[0], diagonal=False),
        "tree_diagonal": lambda step: _tree(step, workspaces[0], diagonal=True),
        "two_part": lambda step: _two_part(step, workspaces),
        "triton": _triton,
    }


def applies(name: str, step: VerifyStep) -> bool:
    """Whether a contender is exact for a shape."""
    if name != "tree_diagonal":
        return True
    from agentspec.kernels.flashinfer_tree.wrapper import fits_one_tile

    shape = step.shape
    return fits_one_tile(shape.width, shape.heads // shape.kv_heads, shape.head_dim)


def _pages(step: VerifyStep) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values as pages of one token, `[slots, 1, kv_heads, head_dim]`."""
    return step.cache[0][:, None], step.cache[1][:, None]


def _plan(wrapper: Any, step: VerifyStep, **arguments: Any) -> None:
    wrapper.plan(
        step.row_indptr,
        step.batch.page_indptr,
        step.batch.page_indices,
        step.batch.last_page_lengths,
        step.shape.heads,
        step.shape.kv_heads,
        step.shape.head_dim,
        1,
        q_data_type=step.query.dtype,
        kv_data_type=step.cache[0].dtype,
        sm_scale=step.rules.scale,
        **arguments,
    )


def _stock(step: VerifyStep, workspace: torch.Tensor, causal: bool) -> Callable[[], torch.Tensor]:
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper

    wrapper = BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend="fa2")
    if causal:
        _plan(wrapper, step, causal=True)
    else:
        before = step.masks.new_ones(step.shape.batch, step.shape.width, step.shape.context)
        _plan(wrapper, step, custom_mask=torch.cat([before, step.masks], -1).flatten())
    return lambda: wrapper.run(step.query, _pages(step))


def _variant(step: VerifyStep) -> Any:
    from agentspec.kernels.flashinfer_tree.variant import TreeVariant

    return TreeVariant(step.query.dtype, step.cache[0].dtype, step.shape.head_dim)


def _tree(step: VerifyStep, workspace: torch.Tensor, diagonal: bool) -> Callable[[], torch.Tensor]:
    from agentspec.kernels.flashinfer_tree.wrapper import TreeAttentionWrapper

    wrapper = TreeAttentionWrapper(workspace, _variant(step), step.bits, diagonal=diagonal)
    _plan(wrapper, step)
    return lambda: wrapper.run(step.query, _pages(step))


def _two_part(step: VerifyStep, workspaces: list[torch.Tensor]) -> Callable[[], torch.Tensor]:
    from agentspec.kernels.flashinfer_tree.two_part import TwoPartWrapper

    wrapper = TwoPartWrapper((workspaces[0], workspaces[1]), _variant(step), step.bits)
    wrapper.plan(step.row_indptr, step.batch, step.shape.heads, step.shape.kv_heads, step.rules)
    return lambda: wrapper.run(step.query, _pages(step))


def _torch_two_part(step: VerifyStep) -> Callable[[], torch.Tensor]:
    return lambda: two_part_attention(step.query, step.cache, step.batch, step.bits, step.rules)[0]


def _triton(step: VerifyStep) -> Callable[[], torch.Tensor]:
    from agentspec.kernels.triton.tree_attention import paged_tree_attention

    splits = max(1, min(64, step.shape.context // 1024 * 8 // step.shape.batch))
    return lambda: paged_tree_attention(step.query, step.cache, step.batch, step.bits, step.rules, splits)[0]
