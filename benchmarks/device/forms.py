"""Whether every form of the variant computes what it should, not only the one that is timed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from agentspec.kernels.measuring.steps import Shape, random_step

if TYPE_CHECKING:
    from agentspec.kernels.measuring.steps import VerifyStep


@dataclass(frozen=True, slots=True)
class Form:
    """Element types, head dimension and rules of a step that one compiled form computes."""

    dtype: torch.dtype
    cache_dtype: torch.dtype
    head_dim: int
    soft_cap: float = 0.0
    window: int = -1

    def step(self, width: int, context: int, device: str) -> VerifyStep:
        """A random step of two requests, four query heads per key head."""
        shape = Shape(width, 2, context, 8, 2, self.head_dim)
        return random_step(
            shape,
            width,
            device,
            self.dtype,
            cache_dtype=self.cache_dtype,
            soft_cap=self.soft_cap,
            window=self.window,
        )


FORMS = {
    "fp8 cache": Form(torch.bfloat16, torch.float8_e4m3fn, 128),
    "float16, 64": Form(torch.float16, torch.float16, 64),
    "soft cap, window": Form(torch.bfloat16, torch.bfloat16, 128, soft_cap=30.0, window=200),
    "256": Form(torch.bfloat16, torch.bfloat16, 256),
}
"""Most worth knowing first; each is compiled when it is reached."""
SIZES = ((1, 40), (24, 700), (70, 130))
"""Width and context of the steps that each is tried on."""
