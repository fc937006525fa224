"""Two-part attention on FlashInfer: a maskless pass over the prefixes, the variant over the rows, and their merger.

The point is the first pass, which is nearly all of the work: without a mask it may run on any of FlashInfer's kernels,
FlashAttention 3 on Hopper for one. Contract: `agentspec.kernels.two_part_attention`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from flashinfer import BatchPrefillWithPagedKVCacheWrapper, merge_state

from agentspec.kernels.flashinfer_tree.wrapper import TreeAttentionWrapper
from agentspec.kernels.paged_tree_attention import NO_WINDOW

if TYPE_CHECKING:
    from agentspec.kernels.flashinfer_tree.host_layout import HostLayout
    from agentspec.kernels.flashinfer_tree.variant import TreeVariant

_SOME_CAP = 1.0
"""Planning only asks whether there is a soft cap; its value comes with each run."""


class TwoPartWrapper:
    """Planned and run like `TreeAttentionWrapper`, over a cache of one token a page.

    With a CUDA graph, whatever the graph reads lies in buffers of this object that `plan` writes; it must be called
    before every replay, as FlashInfer's own.

    Args:
        workspace: FlashInfer's float workspace; the parts run one after the other and share it.
        variant: of the rows; without a window.
        bits: as for `TreeAttentionWrapper`.
        prefix_backend: FlashInfer's backend for the prefixes: `fa2` or `fa3`.
        prefix_indices: `int32`, buffer for the slots of all prefixes when a CUDA graph is used, at least as long as
            `paged_kv_indices_buf`; wrappers of which one runs at a time may share it.
        use_cuda_graph: whether runs are captured.
        qo_indptr_buf: `int32[B + 1]`, of which only the length matters: the batch size that is captured.
        graph_buffers: FlashInfer's other buffers; not used.

    Attributes:
        host_layout: as for `TreeAttentionWrapper`.
        is_cuda_graph_enabled: as FlashInfer's wrappers say it.

    Raises:
        ValueError: the variant has a window, or a graph is asked for without a buffer for the prefixes.
    """

    _custom_mask_buf = None
    """Engines ask FlashInfer's wrappers for it; here no mask is kept."""

    def __init__(
        self,
        workspace: torch.Tensor,
        variant: TreeVariant,
        bits: torch.Tensor,
        *,
        prefix_backend: str = "fa2",
        prefix_indices: torch.Tensor | None = None,
        use_cuda_graph: bool = False,
        qo_indptr_buf: torch.Tensor | None = None,
        **graph_buffers: Any,
    ) -> None:
        del graph_buffers
        if variant.window:
            raise ValueError("two-part attention has no sliding window; use TreeAttentionWrapper for windowed layers")
        self.is_cuda_graph_enabled = use_cuda_graph
        self.host_layout: HostLayout | None = None
        self._variant = variant
        prefix_buffers: dict[str, Any] = {}
        tail_buffers: dict[str, Any] = {}
        if use_cuda_graph:
            if qo_indptr_buf is None or prefix_indices is None:
                raise ValueError("a CUDA graph needs qo_indptr_buf and prefix_indices")
            prefix_buffers = _graph_buffers(qo_indptr_buf, prefix_indices)
            tail_buffers = _graph_buffers(qo_indptr_buf, torch.zeros_like(bits[:, 0], dtype=torch.int32))
        self._prefix = BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend=prefix_backend, **prefix_buffers)
        self._tail = TreeAttentionWrapper(workspace, variant, bits, **tail_buffers)

    def plan(
        self,
        qo_indptr: torch.Tensor,
        paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        custom_mask: Any = None,
        window_left: int = NO_WINDOW,
        **kwargs: Any,
    ) -> None:
        """Prepare both parts; arguments as for `TreeAttentionWrapper.plan`.

        Raises:
            ValueError: a window is asked for, or pages hold several tokens: the border between the parts may then run
                through a page.
        """
        del custom_mask
        if page_size != 1 or window_left != NO_WINDOW:
            raise ValueError("two-part attention needs pages of one token and no sliding window")
        layout = self.host_layout
        if layout is not None:
            qo_indptr, paged_kv_indptr = layout.row_indptr(), layout.page_indptr(1)
            paged_kv_last_page_len = layout.last_page_lengths(1)
        width = int(qo_indptr[-1]) // (len(qo_indptr) - 1)
        sizes = (num_qo_heads, num_kv_heads, head_dim_qk, 1)
        prefix, tail = _split(paged_kv_indptr, paged_kv_indices, width)
        cap = {"logits_soft_cap": _SOME_CAP} if self._variant.soft_cap else {}
        self._prefix.plan(qo_indptr, *prefix, paged_kv_last_page_len, *sizes, **cap | kwargs | {"causal": False})
        self._tail.plan(qo_indptr, *tail, paged_kv_last_page_len, *sizes, **kwargs)

    begin_forward = plan

    def forward(self, q: torch.Tensor, paged_kv_cache: Any, **kwargs: Any) -> torch.Tensor:
        """As `TreeAttentionWrapper.forward`."""
        over_prefix = self._prefix.forward_return_lse(q, paged_kv_cache, **kwargs | {"causal": False})
        over_tail = self._tail.forward_return_lse(q, paged_kv_cache, **kwargs)
        merged: torch.Tensor = merge_state(*over_prefix, *over_tail)[0]
        return merged


def _graph_buffers(qo_indptr: torch.Tensor, indices: torch.Tensor) -> dict[str, Any]:
    """Buffers of one part, for the batch size of `qo_indptr`."""
    return {
        "use_cuda_graph": True,
        "qo_indptr_buf": torch.zeros_like(qo_indptr),
        "paged_kv_indptr_buf": torch.zeros_like(qo_indptr),
        "paged_kv_indices_buf": indices,
        "paged_kv_last_page_len_buf": torch.ones_like(qo_indptr[1:]),
    }


def _split(
    indptr: torch.Tensor, indices: torch.Tensor, width: int
) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Index pointer and slots of the prefixes and of the last `width` tokens of every request.

    Args:
        indptr: `int32[B + 1]`, where every request's slots begin in `indices`; on any device, where the results are.
        indices: `int32`, slots; those behind the last request are not looked at.
        width: rows of a request.
    """
    batch = len(indptr) - 1
    tail_indptr = torch.arange(batch + 1, dtype=torch.int32, device=indptr.device) * width
    prefix_indptr = indptr - tail_indptr
    ends, prefix_ends = (one[1:].to(indices.device, non_blocking=True).long() for one in (indptr, prefix_indptr))
    rows = torch.arange(width, device=indices.device)
    tails = indices[(ends[:, None] - width + rows).flatten()]
    # The i-th slot of all prefixes lies behind the rows of the requests before its own.
    place = torch.arange(max(0, len(indices) - batch * width), device=indices.device)
    before = torch.searchsorted(prefix_ends, place, right=True).clamp_(max=batch - 1)
    prefixes = indices[place + before * width]
    return (prefix_indptr, prefixes), (tail_indptr, tails)
