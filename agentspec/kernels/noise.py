"""Position-keyed noise: random numbers that are a pure function of (seed, absolute position, token id).

A sampler that keeps a random state draws other numbers as soon as speculation changes how many draws one step makes.
Here nothing is kept: the Gumbel noise of a token at a position of the text is computed from those three numbers alone,
so a seed gives the same text with any draft tree, with none, and in any batch.

The scheme is the output function of SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators",
2014), used as a counter-based hash. With `mix` that function and `GAMMA` its odd increment:

    key  = mix(mix(seed) + position * GAMMA)
    bits = mix(key + (token + 1) * GAMMA)          modulo 2**64
    u    = (floor(bits / 2**12) + 1/2) / 2**52     strictly inside (0, 1), exact in float64
    g    = -log(-log(u))                           standard Gumbel
"""

from __future__ import annotations

import torch

GAMMA = 0x9E3779B97F4A7C15
"""Increment between counters: 2**64 divided by the golden ratio, odd."""

GUMBEL_SPAN = 41.0
"""More than the distance between the greatest noise (36.7, at u = 1 - 2**-53) and the least (-3.6, at u = 2**-53)."""

_WORD = 1 << 64
_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31
_MANTISSA_BITS = 52


def uniform(seed: int, position: int, tokens: torch.Tensor) -> torch.Tensor:
    """Uniform noise of candidate tokens at one position.

    Args:
        seed: any integer; taken modulo 2**64.
        position: number of tokens before the one that is drawn, the prompt's included.
        tokens: `int64[S]`, candidate token ids; on the CPU or another device that has float64.

    Returns:
        `float64[S]`, strictly between 0 and 1.
    """
    key = _mix_scalar((_mix_scalar(seed % _WORD) + position * GAMMA) % _WORD)
    bits = tokens.mul(_signed(GAMMA)).add_(_signed((key + GAMMA) % _WORD))
    for shift, factor in _STEPS:
        bits.bitwise_xor_(_shifted(bits, shift)).mul_(_signed(factor))
    bits.bitwise_xor_(_shifted(bits, _LAST_SHIFT))
    return _shifted(bits, 64 - _MANTISSA_BITS).to(torch.float64).add_(0.5).mul_(2.0**-_MANTISSA_BITS)


def gumbel(seed: int, position: int, tokens: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise `float64[S]` of candidate tokens at one position; arguments as for `uniform`."""
    return uniform(seed, position, tokens).log_().neg_().log_().neg_()


def _mix_scalar(value: int) -> int:
    for shift, factor in _STEPS:
        value = (value ^ (value >> shift)) * factor % _WORD
    return value ^ (value >> _LAST_SHIFT)


def _signed(value: int) -> int:
    """The int64 that has the same 64 bits: torch has no uint64 arithmetic, and wrap-around makes them equal."""
    return value - _WORD if value >= _WORD // 2 else value


def _shifted(bits: torch.Tensor, count: int) -> torch.Tensor:
    """Logical right shift: torch's own keeps the sign."""
    return bits.bitwise_right_shift(count).bitwise_and_((1 << (64 - count)) - 1)
