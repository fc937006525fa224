"""Tree attention in plain torch: the definition that every faster kernel is held against.

Queries are the rows of one verify step. Each sees all keys of the committed prefix and, of the rows themselves, those
that the ancestor mask allows. No mask over the prefix exists.
"""

from __future__ import annotations

import torch


def tree_attention(
    query: torch.Tensor,
    prefix: tuple[torch.Tensor, torch.Tensor],
    tail: tuple[torch.Tensor, torch.Tensor],
    mask: torch.Tensor,
    scale: float | None = None,
) -> torch.Tensor:
    """Attention of tree rows over a prefix and over their own ancestors.

    Args:
        query: `[heads, Q, head_dim]`.
        prefix: keys and values of the committed tokens, each `[kv_heads, P, head_dim]`.
        tail: keys and values of the rows, each `[kv_heads, Q, head_dim]`.
        mask: `bool[Q, Q]`, entry (i, j) set when row i attends to row j.
        scale: of the scores; None: 1 / sqrt(head_dim).

    Returns:
        `[heads, Q, head_dim]`, in the dtype of `query`.
    """
    heads, rows, head_dim = query.shape
    grouped = query.reshape(prefix[0].shape[0], -1, rows, head_dim)
    scale = head_dim**-0.5 if scale is None else scale
    over_prefix = torch.einsum("hgqd,hpd->hgqp", grouped, prefix[0]) * scale
    over_tail = torch.einsum("hgqd,hkd->hgqk", grouped, tail[0]) * scale
    scores = torch.cat([over_prefix, over_tail.masked_fill(~mask, -torch.inf)], dim=-1)
    weights = scores.softmax(dim=-1)
    values = torch.cat([prefix[1], tail[1]], dim=1)
    return torch.einsum("hgqp,hpd->hgqd", weights, values).reshape(heads, rows, head_dim)
