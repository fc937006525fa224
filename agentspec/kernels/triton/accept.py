"""Acceptance on the device: the target draws at every row, then each request's path is followed.

The rule is that of `agentspec.kernels.acceptance` and `agentspec.kernels.sampling`, and so are the drawn tokens:
`argmax(logits / T + Gumbel(seed, position))` over the tokens at or above a threshold, T = 0 being greedy. Two launches
and no transfer to the host. The end of a text is left to the caller, who cuts the emitted tokens there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from agentspec.kernels import sampling
from agentspec.kernels.triton.noise import gumbel, position_key

GREEDY_BELOW = tl.constexpr(sampling.GREEDY_BELOW)

NO_PARENT = -2
"""Parent of a padding row: no path leads to it."""

_BLOCK = 2048
"""Tokens of the vocabulary that a program looks at together."""
_PART = 8 * _BLOCK
"""Tokens of the vocabulary that one program goes through: 8 programs per row at 128k tokens."""


@dataclass(frozen=True, slots=True)
class DeviceSampling:
    """How every request of a batch draws.

    Attributes:
        temperatures: `float32[B]`; below `agentspec.kernels.sampling.GREEDY_BELOW` the most likely token is taken.
        seeds: `int64[B]`, seeds modulo 2**64.
        positions: `int64[B, W]`, tokens before the one that is drawn at each row.
        thresholds: `float32[B, W]`, logits over the temperature below these are not drawn; None keeps all.
    """

    temperatures: torch.Tensor
    seeds: torch.Tensor
    positions: torch.Tensor
    thresholds: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class DeviceVerdict:
    """What a verify step emitted.

    Attributes:
        tokens: `int64[B, W]`, the drawn tokens in order, padded with -1. A -1 within the first `counts` says that
            nothing could be drawn there: the target's output is broken or every token is excluded.
        path: `int32[B, W]`, row 0 and the accepted rows in order, padded with -1.
        counts: `int32[B]`, tokens drawn, which is rows on the path.
    """

    tokens: torch.Tensor
    path: torch.Tensor
    counts: torch.Tensor


def accept(logits: torch.Tensor, tokens: torch.Tensor, parents: torch.Tensor, draw: DeviceSampling) -> DeviceVerdict:
    """Draw at every row and follow the draws from row 0.

    Args:
        logits: `float32[B * W, V]`, processed, the last axis contiguous.
        tokens: `int64[B, W]`, the token of every row.
        parents: `int32[B, W]`, the row above each row; -1 for row 0 and `NO_PARENT` for padding.
        draw: how.
    """
    batch, width = tokens.shape
    vocabulary = logits.shape[1]
    parts = triton.cdiv(vocabulary, _PART)
    values = torch.empty(batch * width, parts, dtype=torch.float64, device=logits.device)
    drawn = torch.empty(batch * width, parts, dtype=torch.int64, device=logits.device)
    _draw[(batch * width, parts)](
        logits,
        draw.temperatures,
        draw.seeds,
        draw.positions,
        draw.positions if draw.thresholds is None else draw.thresholds,
        values,
        drawn,
        vocabulary,
        logits.stride(0),
        width,
        TRUNCATED=draw.thresholds is not None,
        BLOCK=_BLOCK,
        PART=_PART,
    )
    verdict = DeviceVerdict(
        torch.full_like(tokens, -1),
        torch.full((batch, width), -1, dtype=torch.int32, device=logits.device),
        torch.empty(batch, dtype=torch.int32, device=logits.device),
    )
    _walk[(batch,)](
        values,
        drawn,
        tokens,
        parents,
        verdict.tokens,
        verdict.path,
        verdict.counts,
        width,
        parts,
        ROWS=triton.next_power_of_2(width),
        PARTS=triton.next_power_of_2(parts),
    )
    return verdict


@triton.jit
def _draw(
    logits: Any,
    temperatures: Any,
    seeds: Any,
    positions: Any,
    thresholds: Any,
    values: Any,
    drawn: Any,
    vocabulary: Any,
    row_stride: Any,
    width: Any,
    TRUNCATED: tl.constexpr,
    BLOCK: tl.constexpr,
    PART: tl.constexpr,
) -> None:
    """The best token of one part of the vocabulary at one row, and its value: `[B * W, parts]` each."""
    row, part = tl.program_id(0), tl.program_id(1)
    request = row // width
    temperature = tl.load(temperatures + request)
    greedy = temperature < GREEDY_BELOW
    key = position_key(tl.load(seeds + request), tl.load(positions + row))
    best = tl.full((), float("-inf"), tl.float64)
    token = tl.full((), -1, tl.int64)
    for start in range(part * PART, min((part + 1) * PART, vocabulary), BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        inside = offsets < vocabulary
        scores = tl.load(logits + row.to(tl.int64) * row_stride + offsets, mask=inside, other=float("-inf"))
        # A NaN, the one value that differs from itself, wins and is found out in the walk.
        scores = tl.where(scores == scores, scores, float("inf"))  # noqa: PLR0124
        if greedy:
            noisy = scores.to(tl.float64)
        else:
            scaled = tl.div_rn(scores, temperature)
            if TRUNCATED:
                scaled = tl.where(scaled >= tl.load(thresholds + row), scaled, float("-inf"))
            noisy = scaled.to(tl.float64) + gumbel(key, offsets)
        noisy = tl.where(inside, noisy, float("-inf"))
        found = tl.max(noisy, 0)
        if found > best:
            best = found
            token = (start + tl.argmax(noisy, 0)).to(tl.int64)
    tl.store(values + row * tl.num_programs(1) + part, best)
    tl.store(drawn + row * tl.num_programs(1) + part, token)


@triton.jit
def _walk(
    values: Any,
    drawn: Any,
    tokens: Any,
    parents: Any,
    emitted: Any,
    path: Any,
    counts: Any,
    width: Any,
    parts: Any,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
) -> None:
    """Follow one request's draws."""
    first = tl.program_id(0) * width
    rows = tl.arange(0, ROWS)
    held = tl.load(tokens + first + rows, mask=rows < width, other=-1)
    above = tl.load(parents + first + rows, mask=rows < width, other=-3)
    place = tl.arange(0, PARTS)
    row = tl.full((), 0, tl.int32)
    count = tl.full((), 0, tl.int32)
    while row >= 0:
        offset = (first + row) * parts
        best = tl.load(values + offset + place, mask=place < parts, other=float("-inf"))
        token = tl.load(drawn + offset + tl.argmax(best, 0))
        token = tl.where(tl.max(best, 0) == float("inf"), -1, token)
        tl.store(path + first + count, row)
        tl.store(emitted + first + count, token)
        count += 1
        row = tl.max(tl.where((above == row) & (held == token) & (token >= 0), rows, -1), 0)
    tl.store(counts + tl.program_id(0), count)
