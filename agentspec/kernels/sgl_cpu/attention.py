"""Attention over SGLang's paged cache on the CPU: per request, over gathered keys and values.

Shapes: q `[T, H, D]`, k and v `[T, Hkv, D]`, the cache buffers `[slots, Hkv, D]`; H is a multiple of Hkv.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from torch import Tensor


def _refuse_unsupported(is_cross_attn: bool, encoder_lens: Tensor | None, sinks: Tensor | None) -> None:
    if is_cross_attn or encoder_lens is not None or sinks is not None:
        raise NotImplementedError("the CPU stand-in has no cross attention and no attention sinks")


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, logit_cap: float) -> Tensor:
    """Attention of one request's queries.

    Query heads that share a key head are folded into its rows, so keys are never repeated.

    Args:
        q: `[E, H, D]`.
        k: `[S, Hkv, D]`.
        v: `[S, Hkv, Dv]`.
        mask: `bool[E, S]`, True where attention is allowed; None allows all.
        scale: factor of the logits.
        logit_cap: soft cap of the logits; 0 for none.

    Returns:
        `[E, H, Dv]`.
    """
    rows, heads, _ = q.shape
    groups = heads // k.shape[1]
    queries = q.view(rows, k.shape[1], groups, -1).permute(1, 2, 0, 3).flatten(1, 2)
    keys, values = k.transpose(0, 1).to(q.dtype), v.transpose(0, 1).to(q.dtype)
    allowed = None if mask is None else mask.repeat(groups, 1)
    if logit_cap > 0:
        logits = logit_cap * torch.tanh(queries.float() @ keys.float().mT * scale / logit_cap)
        if allowed is not None:
            logits = logits.masked_fill(~allowed, float("-inf"))
        out = (logits.softmax(-1) @ values.float()).to(q.dtype)
    else:
        out = scaled_dot_product_attention(queries[None], keys[None], values[None], allowed, scale=scale)[0]
    return out.view(k.shape[1], groups, rows, -1).permute(2, 0, 1, 3).flatten(1, 2)


def _tail_mask(rows: int, length: int, tail: Tensor | None, sliding_window: int) -> Tensor:
    """`bool[rows, length]`: the prefix is visible, the last `rows` columns follow `tail` or are causal."""
    mask = torch.ones(rows, length, dtype=torch.bool)
    mask[:, length - rows :] = torch.ones(rows, rows, dtype=torch.bool).tril() if tail is None else tail
    if sliding_window > 0:
        query = torch.arange(length - rows, length).view(-1, 1)
        mask &= torch.arange(length) > query - sliding_window
    return mask


def extend_attention_cpu(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    out: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,  # noqa: ARG001
    v_scale: float,  # noqa: ARG001
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    extend_seq_lens: Tensor,
    extend_start_loc: Tensor,
    max_len_extend: int,  # noqa: ARG001
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
    tree_mask: Tensor | None,
    is_causal: bool,
) -> None:
    """Attention of several new tokens per request: prefill, or the nodes of a draft tree.

    Args:
        q: queries of all requests in a row.
        k: keys of the new tokens; None when they are in the cache already.
        v: values likewise.
        out: out, `[T, H, Dv]`.
        k_buffer: key cache.
        v_buffer: value cache.
        k_scale: quantisation scale, unused: quantised caches go through SGLang's own write path.
        v_scale: likewise.
        req_to_token: cache slot of every position.
        req_pool_indices: row of every request in it.
        seq_lens: length of every request, the new tokens included.
        extend_seq_lens: new tokens of every request.
        extend_start_loc: where in `q` they begin.
        max_len_extend: unused hint.
        sm_scale: factor of the logits.
        logit_cap: soft cap of the logits; 0 for none.
        is_cross_attn: not supported.
        sliding_window: positions that a token looks back on, itself included; 0 for all.
        encoder_lens: not supported.
        sinks: not supported.
        tree_mask: `bool`, flat `[E, E]` per request: what each new token sees of the new ones; None is causal.
        is_causal: False lets every token see all.

    Raises:
        NotImplementedError: cross attention or sinks are asked for.
    """
    _refuse_unsupported(is_cross_attn, encoder_lens, sinks)
    mask_offset = 0
    for row, length, rows, start in zip(
        req_pool_indices.tolist(),
        seq_lens.tolist(),
        extend_seq_lens.tolist(),
        extend_start_loc.tolist(),
        strict=True,
    ):
        if not rows:
            continue
        new = slice(start, start + rows)
        cached = length if k is None else length - rows
        slots = req_to_token[row, :cached].long()
        keys, values = k_buffer[slots], v_buffer[slots]
        if k is not None and v is not None:
            keys = torch.cat((keys.to(q.dtype), k[new].view(rows, -1, k_buffer.shape[-1])))
            values = torch.cat((values.to(q.dtype), v[new].view(rows, -1, v_buffer.shape[-1])))
        mask = None
        if is_causal:
            tail = None
            if tree_mask is not None:
                tail = tree_mask[mask_offset : mask_offset + rows * rows].view(rows, rows)
                mask_offset += rows * rows
            mask = _tail_mask(rows, length, tail, sliding_window)
        out[new] = _attend(q[new], keys, values, mask, sm_scale, logit_cap)


def decode_attention_cpu(
    q: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,  # noqa: ARG001
    v_scale: float,  # noqa: ARG001
    out: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    loc: Tensor,
    attn_logits: Tensor,  # noqa: ARG001
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
) -> None:
    """Attention of one new token per request; writes its key and value to the cache first.

    Args:
        q: one query per request.
        k_buffer: key cache, written at `loc`.
        v_buffer: value cache, written at `loc`.
        k_scale: unused, see `extend_attention_cpu`.
        v_scale: likewise.
        out: out, `[B, H, Dv]`.
        k: keys of the new tokens; None when they are in the cache already.
        v: values likewise.
        loc: `[B]`, cache slots of the new tokens.
        attn_logits: scratch memory of the compiled kernel, unused.
        req_to_token: cache slot of every position.
        req_pool_indices: row of every request in it.
        seq_lens: length of every request, the new token included.
        sm_scale: factor of the logits.
        logit_cap: soft cap of the logits; 0 for none.
        is_cross_attn: not supported.
        sliding_window: positions that a token looks back on, itself included; 0 for all.
        encoder_lens: not supported.
        sinks: not supported.

    Raises:
        NotImplementedError: cross attention or sinks are asked for.
    """
    _refuse_unsupported(is_cross_attn, encoder_lens, sinks)
    if k is not None and v is not None:
        k_buffer[loc] = k.view(-1, *k_buffer.shape[1:]).to(k_buffer.dtype)
        v_buffer[loc] = v.view(-1, *v_buffer.shape[1:]).to(v_buffer.dtype)
    for i, (row, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        first = max(0, length - sliding_window) if sliding_window > 0 else 0
        slots = req_to_token[row, first:length].long()
        out[i : i + 1] = _attend(q[i : i + 1], k_buffer[slots], v_buffer[slots], None, sm_scale, logit_cap)
