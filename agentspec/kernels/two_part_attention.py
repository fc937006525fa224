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


def merge_states(outputs: torch.Tensor, sums: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over all keys out of the attention over each of several disjoint sets of them.

    Args:
        outputs: `[sets, R, heads, head_dim]`.
        sums: `[sets, R, heads]`, base-2 log-sums; minus infinity says that a row saw nothing of a set.

    Returns:
        Output `[R, heads, head_dim]` and log-sum `[R, heads]`; zero and minus infinity where nothing was seen at all.
    """
    highest = sums.amax(0)
    weights = (sums - highest.masked_fill(highest == -torch.inf, 0.0)).exp2()
    total = weights.sum(0)
    output = ((weights / total.clamp(min=1.0))[..., None] * outputs).sum(0)
    return output, highest + total.clamp(min=1.0).log2()


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
    over_tail = paged_tree_attention(query, cache, tail, bits, rules)
    output, log_sum = merge_states(*(torch.stack(pair) for pair in zip(over_prefix, over_tail, strict=True)))
    return output.to(query.dtype), log_sum
