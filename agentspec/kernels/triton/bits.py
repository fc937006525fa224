"""Packing masks into bit sets in one launch: what a new tree costs before a verify step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from agentspec.kernels.ancestor_bits import BITS_PER_WORD

if TYPE_CHECKING:
    import torch

WORD = tl.constexpr(BITS_PER_WORD)


def pack_mask_into(mask: torch.Tensor, out: torch.Tensor) -> None:
    """Write what `agentspec.kernels.ancestor_bits.pack_mask` returns.

    Args:
        mask: `bool[B, W, W]`, contiguous.
        out: `int64[rows, words]`, contiguous; its first `B * W` rows are written.
    """
    batch, width, _ = mask.shape
    words = out.shape[1]
    _pack[(batch * width, words)](mask, out, width, words)


@triton.jit
def _pack(mask, out, width, words):
    row, word = tl.program_id(0), tl.program_id(1)
    place = tl.arange(0, WORD)
    column = word * WORD + place
    seen = tl.load(mask + row * width + column, mask=column < width, other=0)
    bits = tl.where(seen != 0, 1, 0).to(tl.int64) << place.to(tl.int64)
    tl.store(out + row * words + word, tl.sum(bits, 0))
