"""Acceptance on the device: the target draws at every row, then each request's path is followed.

The rule is that of `agentspec.kernels.acceptance` and `agentspec.kernels.sampling`, and so are the drawn tokens:
`argmax(logits / T + Gumbel(seed, position))` over the tokens at or above a threshold, T = 0 being greedy. Two launches
and no transfer to the host. The end of a text is left to the caller, who cuts the emitted tokens there. Draws of
another sampler are followed in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Drawn:
    """Candidates for the token of every row: the best of each part of the vocabulary.

    Attributes:
        values: `float64[B * W, parts]`, what the candidates are compared by; the first of equals wins.
        tokens: `int64[B * W, parts]`.
    """

    values: torch.Tensor
    tokens: torch.Tensor

    @classmethod
    def of(cls, tokens: torch.Tensor) -> Drawn:
        """Tokens that another sampler has drawn, `[B * W]`."""
        chosen = tokens.reshape(-1, 1).long()
        return cls(torch.zeros_like(chosen, dtype=torch.float64), chosen)


@dataclass(frozen=True, slots=True)
class RowVerdict:
    """What a verify step emitted, laid out by rows of the whole batch.

    Attributes:
        tokens: `int32[B * W]`, the token drawn at every row on a path; 0 elsewhere.
        path: `int32[B, W]`, row 0 and the accepted rows, counted through the batch, padded with -1.
        counts: `int32[B]`, rows on the path.
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
    verdict = DeviceVerdict(
        torch.full_like(tokens, -1),
        torch.full(tokens.shape, -1, dtype=torch.int32, device=logits.device),
        torch.empty(len(tokens), dtype=torch.int32, device=logits.device),
    )
    _follow(draw_rows(logits, tokens.shape[1], draw), tokens, parents, verdict, by_row=False)
    return verdict


def follow_rows(drawn: Drawn, tokens: torch.Tensor, parents: torch.Tensor) -> RowVerdict:
    """Follow draws from row 0, whoever drew them; every draw is taken for what it is. Arguments as for `accept`."""
    device = tokens.device
    verdict = RowVerdict(
        torch.zeros(tokens.numel(), dtype=torch.int32, device=device),
        torch.full(tokens.shape, -1, dtype=torch.int32, device=device),
        torch.empty(len(tokens), dtype=torch.int32, device=device),
    )
    _follow(drawn, tokens, parents, verdict, by_row=True)
    return verdict


def _follow(
    drawn: Drawn, tokens: torch.Tensor, parents: torch.Tensor, verdict: DeviceVerdict | RowVerdict, *, by_row: bool
) -> None:
    batch, width = tokens.shape
    parts = drawn.values.shape[1]
    _walk[(batch,)](
        drawn.values,
        drawn.tokens,
        tokens,
        parents,
        verdict.tokens,
        verdict.path,
        verdict.counts,
        width,
        parts,
        BY_ROW=by_row,
        ROWS=triton.next_power_of_2(width),
        PARTS=triton.next_power_of_2(parts),
    )


def draw_rows(logits: torch.Tensor, width: int, draw: DeviceSampling) -> Drawn:
    """Draw at every row.

    Args:
        logits: `[B * W, V]`, of any float type, the last axis contiguous.
        width: W.
        draw: how.
    """
    rows, vocabulary = logits.shape
    parts = triton.cdiv(vocabulary, _PART)
    values = torch.empty(rows, parts, dtype=torch.float64, device=logits.device)
    drawn = torch.empty(rows, parts, dtype=torch.int64, device=logits.device)
    _draw[(rows, parts)](
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
    return Drawn(values, drawn)


@triton.jit
def _draw(
    logits,
    temperatures,
    seeds,
    positions,
    thresholds,
    values,
    drawn,
    vocabulary,
    row_stride,
    width,
    TRUNCATED: tl.constexpr,
    BLOCK: tl.constexpr,
    PART: tl.constexpr,
):
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
        scores = scores.to(tl.float32)
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
    values,
    drawn,
    tokens,
    parents,
    emitted,
    path,
    counts,
    width,
    parts,
    BY_ROW: tl.constexpr,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
):
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
        if BY_ROW:
            token = tl.maximum(token, 0)  # as torch has it where every token is excluded
            tl.store(path + first + count, first + row)
            tl.store(emitted + first + row, token)
        else:
            token = tl.where(tl.max(best, 0) == float("inf"), -1, token)
            tl.store(path + first + count, row)
            tl.store(emitted + first + count, token)
        count += 1
        row = tl.max(tl.where((above == row) & (held == token) & (token >= 0), rows, -1), 0)
    tl.store(counts + tl.program_id(0), count)
