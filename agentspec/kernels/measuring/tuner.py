"""The tuner: which kernel is the fastest for which verify step, on the GPU at hand.

A kernel is tried for correctness first, on fresh trees and with poisoned memory. One that computes something else, or
that fails, is left out of the table with its reason, and so is never chosen.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentspec.errors import AgentspecError
from agentspec.kernels.kernel_table import KernelTable, Measurement
from agentspec.kernels.measuring.accuracy import LARGEST_ERROR, error_of
from agentspec.kernels.measuring.steps import Shape, random_step
from agentspec.kernels.verify_kernels import VerifyKernel, exact_kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from agentspec.kernels.flashinfer_tree.variant import TreeVariant
    from agentspec.kernels.kernel_table import TableKey
    from agentspec.kernels.measuring.steps import VerifyStep
    from agentspec.kernels.measuring.timing import Timer

    Planner = Callable[[VerifyKernel, VerifyStep], Callable[[], torch.Tensor]]
    """Plans a step for a kernel; what it returns computes the output, `[B * W, heads, head_dim]`."""

logger = logging.getLogger(__name__)

CHECKED_CONTEXT = 300
SOME_CAP = 30.0
"""Soft cap of the steps that forms with one are measured on."""


class KernelTuningError(AgentspecError):
    """Nothing can be measured here."""

    code = "kernel_tuning_failed"


@dataclass(frozen=True, slots=True)
class Grid:
    """The shapes that are measured.

    Attributes:
        rows: widths of a verify step.
        batches: requests.
        contexts: committed tokens of every request.
        tokens: batch times context at most; larger steps would not fit a GPU's memory beside a model.
    """

    rows: tuple[int, ...] = (8, 16, 32, 64)
    batches: tuple[int, ...] = (1, 4, 16)
    contexts: tuple[int, ...] = (2_048, 8_192, 32_768, 131_072)
    tokens: int = 262_144

    def shapes(self, heads: int, kv_heads: int, head_dim: int) -> Iterator[Shape]:
        """Every shape, small contexts first."""
        for context in self.contexts:
            for batch in self.batches:
                for rows in self.rows:
                    if batch * context <= self.tokens:
                        yield Shape(rows, batch, context, heads, kv_heads, head_dim)


def tune(
    key: TableKey, variant: TreeVariant, grid: Grid, plan: Planner, timer: Timer, *, device: str = "cuda"
) -> KernelTable:
    """Measure every kernel at every shape.

    Args:
        key: what the table is for.
        variant: the form of the deployment.
        grid: the shapes.
        plan: makes a kernel ready for a step.
        timer: measures.
        device: where.
    """
    excluded: dict[VerifyKernel, str] = {}
    measurements = []
    group = key.heads // key.kv_heads
    for rows in grid.rows:
        shape = Shape(rows, 2, CHECKED_CONTEXT, key.heads, key.kv_heads, variant.head_dim)
        for kernel in exact_kernels(variant, rows, group) - excluded.keys():
            problem = _problem(plan, kernel, _step(variant, shape, rows, device))
            if problem is not None:
                excluded[kernel] = f"{rows} rows: {problem}"
                logger.warning("kernel %s is left out: %s", kernel, excluded[kernel])
    for shape in grid.shapes(key.heads, key.kv_heads, variant.head_dim):
        step = _step(variant, shape, 0, device)
        times = {}
        for kernel in sorted(exact_kernels(variant, shape.width, group) - excluded.keys()):
            try:
                times[kernel] = timer.microseconds(plan(kernel, step))
            except Exception as error:
                excluded[kernel] = f"{shape}: {error}"
                logger.warning("kernel %s is left out: %s", kernel, excluded[kernel])
        measurements.append(Measurement(rows=shape.width, batch=shape.batch, context=shape.context, microseconds=times))
    return KernelTable(key=key, measurements=tuple(measurements), excluded=excluded)


def _problem(plan: Planner, kernel: VerifyKernel, step: VerifyStep) -> str | None:
    """Why a kernel cannot be used; None when it computes what it should."""
    try:
        error = error_of(plan(kernel, step), step)
    except Exception as failure:
        return f"{type(failure).__name__}: {failure}"
    return None if error <= LARGEST_ERROR else f"wrong by {error:.3g} of the output"


def _step(variant: TreeVariant, shape: Shape, seed: int, device: str) -> VerifyStep:
    return random_step(
        shape,
        seed,
        device,
        variant.query_dtype,
        cache_dtype=variant.cache_dtype,
        soft_cap=SOME_CAP if variant.soft_cap else 0.0,
        window=shape.context // 2 if variant.window else -1,
    )
