"""Tensors as the native kernels take them: numpy arrays, which know no bfloat16."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


def stored(tensor: Tensor) -> NDArray[Any]:
    """The tensor's own memory as numpy sees it, never a copy; bfloat16 as the 16-bit integers that hold it."""
    bits = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
    array: NDArray[Any] = bits.numpy()
    return array


def floats(tensor: Tensor) -> NDArray[Any]:
    """Its numbers as a contiguous `float32` array, whatever its type."""
    array: NDArray[Any] = tensor.float().contiguous().numpy()
    return array
