"""Tree attention in two parts: the prefix without any mask, the rows of the verify step alone, and their merger.

The softmax over both parts is a weighted mean of the two softmaxes, with the sums they divide by as weights. So the
prefix, which is nearly all of the work, can be left to any attention kernel that reports those sums: on Hopper that
is FlashAttention 3, which takes no custom mask.
"""

from __future__ import annotations

import torch

from agentspec.kernels.paged_tree_attention import (
    NO_WINDOW,
    PagedBatch,
    ScoreRules,
    paged_prefix_attention,
    paged_tree_attention,
)


def merge_states(
    first: tuple[torch.Tensor, torch.Tensor], second: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over two disjoint sets of keys out of the attention over each.

    Args:
        first: output `[R, heads, head_dim]` and base-2 log-sum `[R, heads]` over the first set.
        second: likewise over the second. A log-sum of minus infinity says that the set was empty for that row.

    Returns:
        Output and log-sum over both.
    """
    (one, one_sum), (two, two_sum) = first, second
    highest = torch.maximum(one_sum, two_sum)
    floor = highest.masked_fill(highest == -torch.inf, 0.0)
    one_weight, two_weight = (one_sum - floor).exp2(), (two_sum - floor).exp2()
    total = one_weight + two_weight
    share = (one_weight / total).nan_to_num()[..., None]
    merged = share * one + (two_weight / total).nan_to_num()[..., None] * two
    return merged.to(one.dtype), floor + total.log2()


def split_tail(batch: PagedBatch, rows: int) -> tuple[PagedBatch, PagedBatch]:
    """The prefix of every request and its last `rows` tokens, as batches of their own, one token a page.

    Raises:
        ValueError: a request has fewer than `rows` tokens.
    """
    slots = list(batch.slots())
    for b, one in enumerate(slots):
        if len(one) < rows:
            raise ValueError(f"request {b} has {len(one)} tokens, fewer than the {rows} rows of the verify step")
    return _of_slots([one[: len(one) - rows] for one in slots]), _of_slots([one[len(one) - rows :] for one in slots])


def _of_slots(slots: list[torch.Tensor]) -> PagedBatch:
    lengths = torch.tensor([len(one) for one in slots], dtype=torch.int32)
    indptr = torch.zeros(len(slots) + 1, dtype=torch.int32)
    indptr[1:] = lengths.cumsum(0)
    device = slots[0].device
    return PagedBatch(
        indptr.to(device), torch.cat(slots).int(), torch.ones(len(slots), dtype=torch.int32).to(device), 1
    )


def two_part_attention(
    query: torch.Tensor,
    cache: tuple[torch.Tensor, torch.Tensor],
    batch: PagedBatch,
    bits: torch.Tensor,
    rules: ScoreRules,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What `paged_tree_attention` computes, in two parts; arguments and result as there.

    Raises:
        ValueError: a sliding window is asked for; it crosses the border between the parts.
    """
    if rules.window != NO_WINDOW:
        raise ValueError("two-part attention has no sliding window; use the one-part kernels for windowed layers")
    rows = len(query) // len(batch)
    prefix, tail = split_tail(batch, rows)
    over_prefix = paged_prefix_attention(query, cache, prefix, rules)
    return merge_states(over_prefix, paged_tree_attention(query, cache, tail, bits, rules))
