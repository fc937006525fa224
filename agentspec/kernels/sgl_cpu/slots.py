"""KV slot bookkeeping: which cache row belongs to which position of which request.

`req_to_token` is `int32[R, W]`: row r holds the cache slot of every position of request r. Arguments marked "out"
are filled in place. `pool_len` repeats W for the compiled kernels and is not needed here.
"""

from __future__ import annotations

import ctypes
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor


def _segments(req_pool_indices: Tensor, start: Tensor, end: Tensor) -> Iterator[tuple[int, slice, slice]]:
    """Row, columns in `req_to_token`, and place in the flat slot list, request after request."""
    begins, ends = start.tolist(), end.tolist()
    borders = accumulate((e - s for s, e in zip(begins, ends, strict=True)), initial=0)
    for row, s, e, (low, high) in zip(req_pool_indices.tolist(), begins, ends, pairwise(borders), strict=True):
        yield row, slice(s, e), slice(low, high)


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor, req_to_token: Tensor, start: Tensor, end: Tensor, slots: Tensor, _pool_len: int
) -> None:
    """Write consecutive pieces of `slots` to `req_to_token[row, start:end]` (out), one piece per request."""
    for row, columns, piece in _segments(req_pool_indices, start, end):
        req_to_token[row, columns] = slots[piece].to(req_to_token.dtype)


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor, req_to_token: Tensor, start: Tensor, end: Tensor, slots: Tensor, _pool_len: int
) -> None:
    """Read `req_to_token[row, start:end]` of every request into consecutive pieces of `slots` (out)."""
    for row, columns, piece in _segments(req_pool_indices, start, end):
        slots[piece] = req_to_token[row, columns].to(slots.dtype)


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    slots: Tensor,
    _pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Read the `topk * num_steps` slots after each request's prefix into row i of `slots` (out, flat)."""
    width = topk * num_steps
    columns = seq_lens.long().view(-1, 1) + torch.arange(width)
    slots.copy_(req_to_token[req_pool_indices.long().view(-1, 1), columns].reshape(-1))


def build_draft_decode_metadata_cpu(
    req_to_token: Tensor, req_pool_indices: Tensor, seq_lens: Tensor, topk: int, num_steps: int, _pool_len: int
) -> Tensor:
    """Page table of the draft branches: `int32[B * topk, max(seq_lens) + num_steps]`.

    Row `(b, t)` is the prefix of request b followed by the `num_steps` slots of its branch t; the rest is 0.
    """
    lengths = seq_lens.tolist()
    table = req_to_token.new_zeros(len(lengths), topk, max(lengths) + num_steps)
    for branches, row, length in zip(table, req_pool_indices.tolist(), lengths, strict=True):
        branches[:, :length] = req_to_token[row, :length]
        drafted = req_to_token[row, length : length + topk * num_steps]
        branches[:, length : length + num_steps] = drafted.view(topk, num_steps)
    return table.flatten(0, 1)


def fill_accept_out_cache_loc_cpu(accept_index: Tensor, slots: Tensor, accepted_slots: Tensor) -> None:
    """Pack `slots[accept_index]` to the front of `accepted_slots` (out); negative indices are padding."""
    kept = accept_index.flatten()
    kept = kept[kept >= 0].long()
    accepted_slots[: len(kept)] = slots[kept].to(accepted_slots.dtype)


def fill_bonus_tokens_cpu(accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, stride: int) -> None:
    """The last accepted token of every request into `bonus_tokens` (out, `[B]`).

    Args:
        accept_tokens: any shape; request i owns `stride` consecutive entries.
        accept_lens: `[B]`, how many of them count.
        bonus_tokens: out.
        stride: entries per request.
    """
    last = torch.arange(len(accept_lens)) * stride + accept_lens.long() - 1
    bonus_tokens.copy_(accept_tokens.flatten()[last])


def copy_all_layer_kv_cache_cpu(data_ptrs: Tensor, strides: Tensor, target: Tensor, source: Tensor) -> None:
    """`row[target] = row[source]` in the K and V buffer of every layer.

    Args:
        data_ptrs: `uint64[L]`, addresses of the buffers.
        strides: `[L]`, bytes per row.
        target: `[M]`, rows to write.
        source: `[M]`, rows to read; all are read before any is written.
    """
    if not len(target):
        return
    to, of = target.numpy().astype(np.int64), source.numpy().astype(np.int64)
    rows = int(max(to.max(), of.max())) + 1
    for address, stride in zip(data_ptrs.numpy().view(np.uint64).tolist(), strides.tolist(), strict=True):
        memory = np.ctypeslib.as_array((ctypes.c_uint8 * (rows * stride)).from_address(address))
        buffer = memory.reshape(rows, stride)
        buffer[to] = buffer[of]


def rotate_input_ids_cpu(
    input_ids: Tensor,
    start: Tensor,
    lengths: Tensor,
    next_tokens: Tensor,
    select_index: Tensor | None = None,
) -> None:
    """Shift each request's piece of `input_ids` (in place) left by one and put its next token at the end.

    Args:
        input_ids: `[T]`, all pieces in a row.
        start: `[B]`, where each piece begins.
        lengths: `[B]`, tokens of each piece.
        next_tokens: `[B]` or `[B, 1]`.
        select_index: `[B]`, where in `input_ids` the next token goes instead of the end of the piece.
    """
    places = (start + lengths - 1 if select_index is None else select_index).tolist()
    begins, counts, tokens = start.tolist(), lengths.tolist(), next_tokens.flatten().tolist()
    for begin, count, place, token in zip(begins, counts, places, tokens, strict=True):
        if count:
            input_ids[begin : begin + count - 1] = input_ids[begin + 1 : begin + count].clone()
            input_ids[place] = token
