"""Position-keyed noise in Triton: the same numbers as `agentspec.kernels.noise`."""

from __future__ import annotations

import triton
import triton.language as tl

from agentspec.kernels import noise

GAMMA = tl.constexpr(noise.GAMMA)
FIRST_FACTOR = tl.constexpr(0xBF58476D1CE4E5B9)
SECOND_FACTOR = tl.constexpr(0x94D049BB133111EB)


@triton.jit
def mix(value):
    """The output function of SplitMix64 of `uint64` values."""
    value = (value ^ (value >> 30)) * FIRST_FACTOR
    value = (value ^ (value >> 27)) * SECOND_FACTOR
    return value ^ (value >> 31)


@triton.jit
def position_key(seed, position):
    """The `uint64` that the noise of all tokens at one position is made from."""
    return mix(mix(seed.to(tl.uint64)) + position.to(tl.uint64) * GAMMA)


@triton.jit
def gumbel(key, tokens):
    """Standard Gumbel noise of tokens, `float64`."""
    bits = mix(key + (tokens.to(tl.uint64) + 1) * GAMMA)
    uniform = ((bits >> 12).to(tl.float64) + 0.5) * 2.0**-52
    return -tl.log(-tl.log(uniform))
