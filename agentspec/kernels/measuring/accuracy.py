"""How far the output of a kernel is from tree attention."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from agentspec.kernels.paged_tree_attention import paged_tree_attention

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentspec.kernels.measuring.steps import VerifyStep

LARGEST_ERROR = 0.04
"""Of the output over its root mean square; 16-bit outputs and probabilities are good for about a quarter of that."""


def error_of(run: Callable[[], torch.Tensor], step: VerifyStep) -> float:
    """Largest difference from tree attention in float64 over the root mean square; infinite where one is NaN.

    Memory that the output may land in is filled with NaN first, so that parts which are never written are noticed.
    """
    exact = replace(step, query=step.query.double(), cache=(step.cache[0].double(), step.cache[1].double()))
    expected, _ = paged_tree_attention(exact.query, exact.cache, exact.batch, exact.bits, exact.rules)
    torch.full((4, *step.query.shape), torch.nan, dtype=step.query.dtype, device=step.query.device)
    difference = (run().double() - expected).abs().max() / expected.square().mean().sqrt()
    return float(difference.nan_to_num(nan=torch.inf))
