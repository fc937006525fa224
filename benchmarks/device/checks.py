"""Whether the contenders compute tree attention: against float64, on fresh random trees."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from agentspec.kernels.paged_tree_attention import paged_tree_attention
from benchmarks.device.contenders import EXACT, applies
from benchmarks.device.inputs import Shape, random_step

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from benchmarks.device.contenders import Plan

LARGEST_ERROR = 0.04
"""Of the output over its root mean square; 16-bit outputs and probabilities are good for about a quarter of that."""


@dataclass(frozen=True, slots=True)
class Check:
    """One contender on one random step.

    Attributes:
        contender: its name.
        shape: of the step.
        error: largest difference over the root mean square of the expected output; infinite where one is NaN.
    """

    contender: str
    shape: Shape
    error: float

    @property
    def passed(self) -> bool:
        """Whether the error is what rounding explains."""
        return self.error <= LARGEST_ERROR


def check_all(plans: Mapping[str, Plan], shapes: Iterable[Shape], device: str, dtype: torch.dtype) -> list[Check]:
    """Run every exact contender on a step of every shape; memory that outputs may land in is filled with NaN first."""
    results = []
    for seed, shape in enumerate(shapes):
        step = random_step(shape, seed, device, dtype)
        exact = replace(step, query=step.query.double(), cache=(step.cache[0].double(), step.cache[1].double()))
        expected, _ = paged_tree_attention(exact.query, exact.cache, exact.batch, exact.bits, exact.rules)
        for name, plan in plans.items():
            if name in EXACT and applies(name, step):
                run = plan(step)
                _poison(step.query)
                difference = (run().double() - expected).abs().max() / expected.square().mean().sqrt()
                results.append(Check(name, shape, float(difference.nan_to_num(nan=torch.inf))))
    return results


def _poison(like: torch.Tensor) -> None:
    """Leave NaN in freed memory, where an output that is not written would be found to lie."""
    torch.full((4, *like.shape), torch.nan, dtype=like.dtype, device=like.device)
