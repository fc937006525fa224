"""The hash behind SGLang's seeded sampling: MurmurHash3 (x86, 32 bit) of seed, position and column.

MurmurHash3 is Austin Appleby's, in the public domain. A key is four 32-bit blocks: the low and the high half of the
seed, the position, the column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

_LOW = 0xFFFFFFFF
_KEY_BYTES = 16


def _rotate_left(x: Tensor, bits: int) -> Tensor:
    return ((x << bits) | (x >> (32 - bits))) & _LOW


def _mix(state: Tensor, block: Tensor) -> Tensor:
    """Stir one 32-bit block into the state; products wrap around, only their low 32 bits count."""
    block = _rotate_left((block * 0xCC9E2D51) & _LOW, 15)
    state = _rotate_left(state ^ ((block * 0x1B873593) & _LOW), 13)
    return (state * 5 + 0xE6546B64) & _LOW


def _finish(state: Tensor) -> Tensor:
    """The avalanche step after the last block."""
    state = state ^ _KEY_BYTES
    state = ((state ^ (state >> 16)) * 0x85EBCA6B) & _LOW
    state = ((state ^ (state >> 13)) * 0xC2B2AE35) & _LOW
    return state ^ (state >> 16)


def murmur_hash32_cpu(seed: Tensor, positions: Tensor, columns: Tensor) -> Tensor:
    """Hashes `uint32[n, m]` of every row's (seed, position) with every column.

    Args:
        seed: `uint64[n]`.
        positions: `[n]`, integers; their low 32 bits count.
        columns: `[m]`, integers; their low 32 bits count.
    """
    seeds = seed.view(torch.int64)
    state = _mix(torch.zeros_like(seeds), seeds & _LOW)
    state = _mix(state, (seeds >> 32) & _LOW)
    state = _mix(state, positions.to(torch.int64) & _LOW)
    return _finish(_mix(state.view(-1, 1), columns.to(torch.int64) & _LOW)).to(torch.uint32)
