"""FlashInfer's paged prefill wrapper over the tree variant.

It has the interface of the wrapper that it derives from, so an engine that plans and runs FlashInfer's can plan and
run this one in its place. Where the other takes a mask of q x context bits, this one reads the bit sets of the rows
from a buffer that is given once; writing to that buffer before a run (or before the replay of a CUDA graph) is all
that a new tree needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flashinfer import BatchPrefillWithPagedKVCacheWrapper

from agentspec.kernels.paged_tree_attention import NO_WINDOW

if TYPE_CHECKING:
    import torch

    from agentspec.kernels.flashinfer_tree.host_layout import HostLayout
    from agentspec.kernels.flashinfer_tree.variant import TreeVariant


class TreeAttentionWrapper(BatchPrefillWithPagedKVCacheWrapper):  # type: ignore[misc]
    """Attention of the rows of a verify step over a paged cache.

    Args:
        workspace: FlashInfer's float workspace.
        variant: the compiled form.
        bits: `int64[rows, words]`, contiguous: the bit set of every row of the batch, request after request. It is
            read at every run, where it lies.
        diagonal: use FlashInfer's causal mode, so that bits are looked up in the last tiles alone; only for shapes
            that `fits_one_tile` and without a window.
        wrapper_arguments: of FlashInfer's wrapper: CUDA-graph buffers and the like.

    Attributes:
        host_layout: of the next plans, where the host knows it: they then do not wait for the device. The device must
            have finished with a plan before the wrapper makes the one after the next.

    Raises:
        ValueError: `diagonal` is asked for with a window.
    """

    def __init__(
        self,
        workspace: torch.Tensor,
        variant: TreeVariant,
        bits: torch.Tensor,
        *,
        diagonal: bool = False,
        **wrapper_arguments: Any,
    ) -> None:
        if diagonal and variant.window:
            raise ValueError("the diagonal mode has no sliding window: windows are checked in every tile")
        super().__init__(
            workspace,
            "NHD",
            backend="fa2",
            jit_args=variant.jit_args(),
            jit_kwargs=variant.jit_kwargs(),
            variant_owns_mask=not diagonal,
            **wrapper_arguments,
        )
        self.host_layout: HostLayout | None = None
        self._variant = variant
        self._bits = bits
        self._diagonal = diagonal
        self._window = NO_WINDOW

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
        """FlashInfer's `plan`; a custom mask is not looked at, and `window_left` counts positions.

        Raises:
            ValueError: a window is asked for that was not compiled in.
        """
        del custom_mask
        self._use_window(window_left)
        layout = self.host_layout
        if layout is not None:
            qo_indptr, paged_kv_indptr = layout.row_indptr(), layout.page_indptr(page_size)
            paged_kv_last_page_len = layout.last_page_lengths(page_size)
        super().plan(
            qo_indptr,
            paged_kv_indptr,
            paged_kv_indices,
            paged_kv_last_page_len,
            num_qo_heads,
            num_kv_heads,
            head_dim_qk,
            page_size,
            **kwargs | {"causal": self._diagonal},
        )

    begin_forward = plan

    def forward(self, q: torch.Tensor, paged_kv_cache: Any, **kwargs: Any) -> torch.Tensor:
        """FlashInfer's `forward`; see there and `plan`.

        Raises:
            ValueError: a window or a soft cap is asked for that was not compiled in.
        """
        output: torch.Tensor = super().forward(q, paged_kv_cache, **self._compiled(kwargs))
        return output

    def forward_return_lse(
        self, q: torch.Tensor, paged_kv_cache: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`forward` that also returns the base-2 log-sums, `float32[rows, heads]`."""
        result: tuple[torch.Tensor, torch.Tensor] = super().forward_return_lse(
            q, paged_kv_cache, **self._compiled(kwargs)
        )
        return result

    def run(self, q: torch.Tensor, paged_kv_cache: Any, **kwargs: Any) -> Any:
        """FlashInfer's `run`, given the bit sets."""
        return super().run(q, paged_kv_cache, self._bits, self._bits.shape[1], self._window, **kwargs)

    def run_return_lse(self, q: torch.Tensor, paged_kv_cache: Any, **kwargs: Any) -> Any:
        """`run` that also returns the base-2 log-sums."""
        return self.run(q, paged_kv_cache, return_lse=True, **kwargs)

    def _compiled(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Arguments of the base class's `forward`, once it is clear that this form computes what is asked for."""
        self._use_window(kwargs.pop("window_left", NO_WINDOW))
        soft_cap = kwargs.get("logits_soft_cap") or 0.0
        if (soft_cap > 0) != self._variant.soft_cap:
            raise ValueError(f"{self._variant.name} cannot run with a soft cap of {soft_cap}: choose the other form")
        return kwargs | {"causal": self._diagonal}

    def _use_window(self, window: int) -> None:
        if window != NO_WINDOW and not self._variant.window:
            raise ValueError(f"{self._variant.name} has no sliding window, and {window} was asked for")
        self._window = window
