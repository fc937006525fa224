"""Tree attention over a paged cache in Triton: portable, and readable beside the FlashInfer variant.

Contract: `agentspec.kernels.paged_tree_attention`. Long contexts are split among programs and merged by log-sum.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from agentspec.kernels.ancestor_bits import BITS_PER_WORD, unpack_bits
from agentspec.kernels.paged_tree_attention import NO_WINDOW
from agentspec.kernels.two_part_attention import merge_states

if TYPE_CHECKING:
    from agentspec.kernels.paged_tree_attention import PagedBatch, ScoreRules

LOG2_E = tl.constexpr(math.log2(math.e))
WORD = tl.constexpr(BITS_PER_WORD)

_QUERY_ROWS = 64
"""Pairs of a row and a head in a tile, at most; 16 is the least that a tensor core takes."""
_KEYS = 64


def paged_tree_attention(
    query: torch.Tensor,
    cache: tuple[torch.Tensor, torch.Tensor],
    batch: PagedBatch,
    bits: torch.Tensor,
    rules: ScoreRules,
    splits: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of the rows of a verify step.

    Args:
        query: `[B * W, heads, head_dim]`, contiguous; `head_dim` is a power of two.
        cache: keys and values, each `[slots, kv_heads, head_dim]`, contiguous, of any float type. An 8-bit cache's
            scales are the caller's: the keys' goes into `rules.scale`, the values' onto the output.
        batch: where every request's tokens lie, on the device of `query`.
        bits: `int64[B * W, words]`, the rows each row sees.
        rules: of the scores.
        splits: programs that share the keys of a tile of queries.

    Returns:
        Output `[B * W, heads, head_dim]` in the dtype of `query` and base-2 log-sums `float32[B * W, heads]`.
    """
    rows, heads, head_dim = query.shape
    keys, values = cache
    kv_heads = keys.shape[1]
    width, group = rows // len(batch), heads // kv_heads
    tile = min(_QUERY_ROWS, max(16, triton.next_power_of_2(width * group)))
    windowed = rules.window != NO_WINDOW
    depths = _depths(bits, width) if windowed else bits
    outputs = torch.empty(splits, rows, heads, head_dim, dtype=torch.float32, device=query.device)
    sums = torch.empty(splits, rows, heads, dtype=torch.float32, device=query.device)
    _attend[(len(batch) * triton.cdiv(width * group, tile), kv_heads, splits)](
        query,
        keys,
        values,
        batch.page_indptr,
        batch.page_indices,
        batch.kv_lengths(),
        bits,
        depths,
        outputs,
        sums,
        rows,
        width,
        group,
        kv_heads,
        bits.shape[1],
        rules.scale,
        rules.soft_cap,
        rules.window,
        PAGE=batch.page_size,
        HEAD_DIM=head_dim,
        TILE=tile,
        KEYS=_KEYS,
        SOFT_CAP=rules.soft_cap > 0,
        WINDOWED=windowed,
    )
    output, log_sum = merge_states(outputs, sums)
    return output.to(query.dtype), log_sum


def _depths(bits: torch.Tensor, width: int) -> torch.Tensor:
    return (unpack_bits(bits, width).sum(-1) - 1).int()


@triton.jit
def _attend(
    query,
    keys,
    values,
    page_indptr,
    page_indices,
    kv_lengths,
    bits,
    depths,
    outputs,
    sums,
    all_rows,
    width,
    group,
    kv_heads,
    words,
    scale,
    soft_cap,
    window,
    PAGE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE: tl.constexpr,
    KEYS: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    WINDOWED: tl.constexpr,
):
    """One tile of (row, head) pairs that share a key head, over one share of the keys."""
    tiles = tl.cdiv(width * group, TILE)
    request, kv_head, split = tl.program_id(0) // tiles, tl.program_id(1), tl.program_id(2)
    packed = (tl.program_id(0) % tiles) * TILE + tl.arange(0, TILE)
    real = packed < width * group
    row = request * width + packed // group
    head = kv_head * group + packed % group
    column = tl.arange(0, HEAD_DIM)
    heads = kv_heads * group
    queries = tl.load(query + (row * heads + head)[:, None] * HEAD_DIM + column[None, :], mask=real[:, None], other=0.0)

    length = tl.load(kv_lengths + request)
    prefix = length - width
    share = tl.cdiv(tl.cdiv(length, KEYS), tl.num_programs(2)) * KEYS
    first_page = tl.load(page_indptr + request)

    highest = tl.full([TILE], float("-inf"), tl.float32)
    total = tl.zeros([TILE], tl.float32)
    mean = tl.zeros([TILE, HEAD_DIM], tl.float32)
    for start in range(split * share, min((split + 1) * share, length), KEYS):
        token = start + tl.arange(0, KEYS)
        inside = token < length
        page = tl.load(page_indices + first_page + token // PAGE, mask=inside, other=0).to(tl.int64)
        entry = ((page * PAGE + token % PAGE) * kv_heads + kv_head) * HEAD_DIM
        address = entry[:, None] + column[None, :]
        k = tl.load(keys + address, mask=inside[:, None], other=0.0).to(queries.dtype)
        v = tl.load(values + address, mask=inside[:, None], other=0.0).to(queries.dtype)

        scores = tl.dot(queries, tl.trans(k), input_precision="ieee") * scale
        if SOFT_CAP:
            scores = soft_cap * (2.0 * tl.sigmoid(2.0 * scores / soft_cap) - 1.0)  # a tanh
        visible = inside[None, :] & real[:, None]
        tail = token - prefix
        if start + KEYS > prefix:
            ours = visible & (tail >= 0)[None, :]
            word = tl.load(bits + row[:, None] * words + (tail // WORD)[None, :], mask=ours, other=-1)
            bit = (word >> (tail % WORD)[None, :].to(tl.int64)) & 1
            visible = visible & ((tail < 0)[None, :] | (bit != 0))
        if WINDOWED:
            own = tl.load(depths + row, mask=real, other=0)
            node = (tail >= 0) & inside
            theirs = tl.where(node, tl.load(depths + request * width + tail, mask=node, other=0), tail)
            visible = visible & (own[:, None] - theirs[None, :] <= window)
        scores = tl.where(visible, scores * LOG2_E, float("-inf"))

        top = tl.maximum(highest, tl.max(scores, 1))
        floor = tl.where(top == float("-inf"), 0.0, top)
        shrink = tl.exp2(highest - floor)
        weights = tl.exp2(scores - floor[:, None])
        total = total * shrink + tl.sum(weights, 1)
        mean = mean * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        highest = top

    seen = total > 0
    mean = mean / tl.where(seen, total, 1.0)[:, None]
    log_sum = tl.where(seen, highest + tl.log2(tl.where(seen, total, 1.0)), float("-inf"))
    target = (split * all_rows + row) * heads + head
    tl.store(outputs + target[:, None] * HEAD_DIM + column[None, :], mean, mask=real[:, None])
    tl.store(sums + target, log_sum, mask=real)
