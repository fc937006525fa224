"""Memory of results that are as large at every step: taken from the system once, not page by page at each of them."""

from __future__ import annotations

import math
import sys

import numpy as np
import torch

MOST_KEPT = 1 << 24
"""Numbers (64 MiB of them) beyond which memory is given back after use."""

UNSHARED = 2
"""References that `sys.getrefcount` counts of an array which nothing else holds: its owner's, and its own argument."""


class ReusedMemory:
    """Hands out tensors over one stretch of memory; over another one as long as the last of them is still held."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.float32)

    def take(self, *shape: int) -> torch.Tensor:
        """A `float32` tensor of this shape on the CPU, with whatever was written there before."""
        size = math.prod(shape)
        if size > MOST_KEPT:
            return torch.empty(shape)
        # Every tensor holds the view that it is made of, and the view the whole.
        if size > len(self._memory) or sys.getrefcount(self._memory) > UNSHARED:
            self._memory = np.empty(size, np.float32)
        return torch.from_numpy(self._memory[:size]).view(shape)
