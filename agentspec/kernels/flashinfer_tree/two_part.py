"""Two-part attention on FlashInfer: a maskless pass over the prefixes, the variant over the rows, and their merger.

The point is the first pass: without a mask it may run on FlashAttention 3, which is faster on Hopper than the FA2
template that the variant is made for. Contract: `agentspec.kernels.two_part_attention`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flashinfer import BatchPrefillWithPagedKVCacheWrapper, merge_state

from agentspec.kernels.flashinfer_tree.wrapper import TreeAttentionWrapper
from agentspec.kernels.two_part_attention import split_tail

if TYPE_CHECKING:
    import torch

    from agentspec.kernels.flashinfer_tree.variant import TreeVariant
    from agentspec.kernels.paged_tree_attention import PagedBatch, ScoreRules


class TwoPartWrapper:
    """Plans and runs both parts.

    Args:
        workspaces: a float workspace for each part.
        variant: of the rows; without a window.
        bits: as for `TreeAttentionWrapper`.
        backend: FlashInfer's backend for the prefixes; `auto` takes FA3 where there is one.

    Raises:
        ValueError: the variant has a window.
    """

    def __init__(
        self,
        workspaces: tuple[torch.Tensor, torch.Tensor],
        variant: TreeVariant,
        bits: torch.Tensor,
        backend: str = "auto",
    ) -> None:
        if variant.window:
            raise ValueError("two-part attention has no sliding window; use TreeAttentionWrapper for windowed layers")
        self._variant = variant
        self._prefix = BatchPrefillWithPagedKVCacheWrapper(workspaces[0], "NHD", backend=backend)
        self._tail = TreeAttentionWrapper(workspaces[1], variant, bits)

    def plan(self, row_indptr: torch.Tensor, batch: PagedBatch, heads: int, kv_heads: int, rules: ScoreRules) -> None:
        """Prepare both parts for a batch.

        Args:
            row_indptr: `int32[B + 1]`, as many rows for every request.
            batch: where every request's tokens lie, its rows the last of them.
            heads: query heads.
            kv_heads: key heads.
            rules: of the scores.
        """
        rows = int(row_indptr[-1]) // len(batch)
        for wrapper, part in zip((self._prefix, self._tail), split_tail(batch, rows), strict=True):
            wrapper.plan(
                row_indptr,
                part.page_indptr,
                part.page_indices,
                part.last_page_lengths,
                heads,
                kv_heads,
                self._variant.head_dim,
                part.page_size,
                causal=False,
                sm_scale=rules.scale,
                logits_soft_cap=rules.soft_cap,
                q_data_type=self._variant.query_dtype,
                kv_data_type=self._variant.cache_dtype,
            )

    def run(self, query: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Attention of `query`, `[rows, heads, head_dim]`, over a cache of pages `[slots, 1, kv_heads, head_dim]`."""
        over_prefix: tuple[Any, Any] = self._prefix.run(query, cache, return_lse=True)
        over_tail: tuple[Any, Any] = self._tail.run(query, cache, return_lse=True)
        merged: torch.Tensor = merge_state(*over_prefix, *over_tail)[0]
        return merged
