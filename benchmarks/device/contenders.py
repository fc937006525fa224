"""The attention kernels that are compared. Each is planned for a step once and then run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from agentspec.kernels.two_part_attention import two_part_attention
from agentspec.kernels.verify_kernels import VerifyKernel, fits_one_tile

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentspec.kernels.measuring.steps import Shape, VerifyStep

    Plan = Callable[[VerifyStep], Callable[[], torch.Tensor]]
    """Prepares a step; what it returns computes the output `[B * W, heads, head_dim]`."""

CAUSAL, TRITON, TORCH_TWO_PART = "causal", "triton", "torch_two_part"
OURS = frozenset(set(VerifyKernel) - {VerifyKernel.STOCK})
"""Kernels that the goals are about."""
COMPILED = (CAUSAL, *VerifyKernel)
"""Those that FlashInfer compiles first."""


def names(device: str) -> tuple[str, ...]:
    """Contenders on a device, in the order in which they are measured."""
    return (TORCH_TWO_PART, TRITON) if device == "cpu" else (TRITON, *COMPILED)


def contender(name: str, device: str) -> Plan:
    """One contender by name."""
    if name == TRITON:
        return _triton
    if name == TORCH_TWO_PART:
        return _torch_two_part
    from agentspec.kernels.measuring.planned import WORKSPACE_BYTES, planned

    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
    if name == CAUSAL:
        return lambda step: _causal(step, workspace)
    kernel = VerifyKernel(name)
    return lambda step: planned(kernel, step, workspace)


def applies(name: str, shape: Shape) -> bool:
    """Whether a contender is exact for a shape."""
    if name != VerifyKernel.DIAGONAL:
        return True
    return fits_one_tile(shape.width, shape.heads // shape.kv_heads, shape.head_dim)


def _causal(step: VerifyStep, workspace: torch.Tensor) -> Callable[[], torch.Tensor]:
    """FlashInfer's causal attention: no tree, but the bound that tree attention is compared with."""
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper

    from agentspec.kernels.measuring.planned import run_planned

    return run_planned(BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend="fa2"), step, causal=True)


def _torch_two_part(step: VerifyStep) -> Callable[[], torch.Tensor]:
    return lambda: two_part_attention(step.query, step.cache, step.batch, step.bits, step.rules)[0]


def _triton(step: VerifyStep) -> Callable[[], torch.Tensor]:
    from agentspec.kernels.triton.tree_attention import paged_tree_attention

    splits = max(1, min(64, step.shape.context // 1024 * 8 // step.shape.batch))
    return lambda: paged_tree_attention(step.query, step.cache, step.batch, step.bits, step.rules, splits)[0]
