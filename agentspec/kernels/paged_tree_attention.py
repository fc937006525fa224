"""Tree attention over a paged cache, in plain torch: the contract of the FlashInfer variant and of the Triton kernel.

The cache of a request holds its prefix and, behind it, the rows of the verify step; `kv_lengths` counts both. Row i of
W sees all of the prefix and the rows in its bit set (`agentspec.kernels.ancestor_bits`). A sliding window counts
positions, not rows: nodes of one depth share a position, and a key is visible while it lies at most `window` positions
before the query.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from agentspec.kernels.ancestor_bits import distances, unpack_bits

if TYPE_CHECKING:
    from collections.abc import Iterator

NO_WINDOW = -1


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """Where the keys and values of every request of a batch lie.

    Attributes:
        page_indptr: `int32[B + 1]`, request b's pages are `page_indices[page_indptr[b] : page_indptr[b + 1]]`.
        page_indices: `int32[pages]`.
        last_page_lengths: `int32[B]`, tokens in the last page of every request.
        page_size: tokens a page holds.
    """

    page_indptr: torch.Tensor
    page_indices: torch.Tensor
    last_page_lengths: torch.Tensor
    page_size: int

    def __len__(self) -> int:
        return len(self.last_page_lengths)

    def kv_lengths(self) -> torch.Tensor:
        """`int32[B]`: tokens of every request, the rows of the verify step included."""
        pages = self.page_indptr[1:] - self.page_indptr[:-1]
        return (pages - 1) * self.page_size + self.last_page_lengths

    def slots(self) -> Iterator[torch.Tensor]:
        """For each request, `int64[kv_length]`: the cache slot of every token."""
        offsets = torch.arange(self.page_size, device=self.page_indices.device)
        for b, length in enumerate(self.kv_lengths().tolist()):
            pages = self.page_indices[int(self.page_indptr[b]) : int(self.page_indptr[b + 1])].long()
            yield (pages[:, None] * self.page_size + offsets).flatten()[:length]


@dataclass(frozen=True, slots=True)
class ScoreRules:
    """What becomes of the scores before the softmax.

    Attributes:
        scale: factor of the scores.
        soft_cap: scores are pressed into (-soft_cap, soft_cap) by a tanh; 0 for none.
        window: positions that a row looks back on, beside its own; `NO_WINDOW` for all.
    """

    scale: float
    soft_cap: float = 0.0
    window: int = NO_WINDOW


def paged_tree_attention(
    query: torch.Tensor,
    cache: tuple[torch.Tensor, torch.Tensor],
    batch: PagedBatch,
    bits: torch.Tensor,
    rules: ScoreRules,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of the rows of a verify step.

    Args:
        query: `[B * W, heads, head_dim]`.
        cache: keys and values, each `[slots, kv_heads, head_dim]`; `heads` is a multiple of `kv_heads`.
        batch: where every request's tokens lie.
        bits: `int64[B * W, words]`, the rows each row sees.
        rules: of the scores.

    Returns:
        Output `[B * W, heads, head_dim]` in the dtype of `query`, and the base-2 logarithm of the sums that the
        softmax divides by, `[B * W, heads]` in the dtype of the computation (float64 for float64, float32 otherwise).
    """
    rows = len(query) // len(batch)
    masks = [
        _visible(unpack_bits(bits[b * rows : (b + 1) * rows], rows), length - rows, rules.window)
        for b, length in enumerate(batch.kv_lengths().tolist())
    ]
    return _attend_each(query, cache, batch, masks, rules)


def paged_prefix_attention(
    query: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor], batch: PagedBatch, rules: ScoreRules
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of W rows per request over tokens that all of them see; arguments and result as above."""
    rows = len(query) // len(batch)
    masks = [torch.ones(rows, length, dtype=torch.bool) for length in batch.kv_lengths().tolist()]
    return _attend_each(query, cache, batch, masks, rules)


def _attend_each(
    query: torch.Tensor,
    cache: tuple[torch.Tensor, torch.Tensor],
    batch: PagedBatch,
    masks: list[torch.Tensor],
    rules: ScoreRules,
) -> tuple[torch.Tensor, torch.Tensor]:
    compute = torch.float64 if query.dtype == torch.float64 else torch.float32
    rows = len(query) // len(batch)
    outputs, sums = [], []
    for queries, slots, visible in zip(torch.split(query, rows), batch.slots(), masks, strict=True):
        keys, values = (one[slots].to(compute) for one in cache)
        output, log_sum = _attend(queries.to(compute), keys, values, visible.to(query.device), rules)
        outputs.append(output)
        sums.append(log_sum)
    return torch.cat(outputs).to(query.dtype), torch.cat(sums)


def _visible(tail: torch.Tensor, prefix: int, window: int) -> torch.Tensor:
    """`bool[W, prefix + W]`: what each row sees of the prefix and of the rows."""
    rows = len(tail)
    before = torch.ones(rows, prefix, dtype=torch.bool, device=tail.device)
    if window != NO_WINDOW:
        depth = tail.sum(-1, keepdim=True) - 1
        before = prefix + depth - torch.arange(prefix, device=tail.device) <= window
        tail = tail & (distances(tail) <= window)
    return torch.cat([before, tail], dim=1)


def _attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, visible: torch.Tensor, rules: ScoreRules
) -> tuple[torch.Tensor, torch.Tensor]:
    """One request: query `[W, H, D]`, keys and values `[S, Hkv, D]`, visible `[W, S]`."""
    rows, heads, head_dim = query.shape
    grouped = query.view(rows, keys.shape[1], -1, head_dim)
    scores = torch.einsum("qhgd,khd->qhgk", grouped, keys) * rules.scale
    if rules.soft_cap > 0:
        scores = rules.soft_cap * torch.tanh(scores / rules.soft_cap)
    scores = scores.masked_fill(~visible[:, None, None, :], -torch.inf)
    log_sum = scores.logsumexp(-1)
    # A row without any visible key (padding, or the prefix part of a window) weighs nothing.
    weights = (scores - log_sum.nan_to_num(neginf=0.0)[..., None]).exp()
    output = torch.einsum("qhgk,khd->qhgd", weights, values)
    return output.reshape(rows, heads, head_dim), log_sum.reshape(rows, heads) / math.log(2.0)
