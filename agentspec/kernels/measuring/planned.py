"""A verify kernel planned for a random step, as an engine would plan it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentspec.kernels.flashinfer_tree.choice import make_wrapper
from agentspec.kernels.flashinfer_tree.variant import TreeVariant
from agentspec.kernels.full_mask import full_mask
from agentspec.kernels.paged_tree_attention import NO_WINDOW
from agentspec.kernels.verify_kernels import VerifyKernel

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from agentspec.kernels.measuring.steps import VerifyStep

WORKSPACE_BYTES = 256 << 20
"""FlashInfer's float workspace."""


def variant_of(step: VerifyStep) -> TreeVariant:
    """The form that computes a step."""
    rules = step.rules
    return TreeVariant(
        step.query.dtype,
        step.cache[0].dtype,
        step.shape.head_dim,
        soft_cap=rules.soft_cap > 0,
        window=rules.window != NO_WINDOW,
    )


def planned(kernel: VerifyKernel, step: VerifyStep, workspace: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Plan a step; what is returned computes its output, `[B * W, heads, head_dim]`."""
    wrapper = make_wrapper(kernel, workspace, variant_of(step), step.bits)
    mask = None
    if kernel is VerifyKernel.STOCK:
        mask = full_mask(step.masks, [step.shape.context] * step.shape.batch)
    return run_planned(wrapper, step, custom_mask=mask)


def run_planned(wrapper: Any, step: VerifyStep, **plan_arguments: Any) -> Callable[[], torch.Tensor]:
    """Plan a step with any of FlashInfer's wrappers or ours; returned as by `planned`."""
    rules, shape = step.rules, step.shape
    wrapper.begin_forward(
        step.row_indptr,
        step.batch.page_indptr,
        step.batch.page_indices,
        step.batch.last_page_lengths,
        shape.heads,
        shape.kv_heads,
        shape.head_dim,
        1,
        q_data_type=step.query.dtype,
        kv_data_type=step.cache[0].dtype,
        **({"window_left": rules.window} if rules.window != NO_WINDOW else {}),
        **({"logits_soft_cap": rules.soft_cap} if rules.soft_cap > 0 else {}),
        **plan_arguments,
    )
    pages = (step.cache[0][:, None], step.cache[1][:, None])
    causal = bool(plan_arguments.get("causal"))

    def run() -> torch.Tensor:
        output: torch.Tensor = wrapper.forward(
            step.query,
            pages,
            causal=causal,
            sm_scale=rules.scale,
            logits_soft_cap=rules.soft_cap,
            window_left=rules.window,
        )
        return output

    return run
