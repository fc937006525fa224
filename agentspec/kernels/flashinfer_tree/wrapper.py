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

    from agentspec.kernels.flashinfer_tree.variant import TreeVariant

TILE_ROWS = 128
"""Query rows of FA2's largest tile; its rows are pairs of a query and one of the heads that share a key head."""
WIDE_HEAD = 256
"""From this head dimension on tiles hold 64 rows at most."""


def fits_one_tile(width: int, group: int, head_dim: int) -> bool:
    """Whether all rows of a request lie in one query tile.

    Then FlashInfer's causal mode is exact for trees: ancestors precede their descendants, so its bound only removes
    keys that no bit is set for, and the bits are looked up in the last tiles alone. With several query tiles the later
    ones would take all rows before them for visible.

    Args:
        width: rows of a request.
        group: query heads per key head.
        head_dim: of a head.
    """
    return width * group <= (TILE_ROWS // 2 if head_dim >= WIDE_HEAD else TILE_ROWS)


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
        self._variant = variant
        self._bits = bits
        self._diagonal = diagonal
        self._window = NO_WINDOW

    def plan(self, *args: Any, custom_mask: Any = None, window_left: int = NO_WINDOW, **kwargs: Any) -> None:
        """FlashInfer's `plan`; a custom mask is not looked at, and `window_left` counts positions.

        Raises:
            ValueError: a window is asked for that was not compiled in.
        """
        del custom_mask
        self._use_window(window_left)
        super().plan(*args, **kwargs | {"causal": self._diagonal})

    begin_forward = plan

    def forward(self, q: torch.Tensor, paged_kv_cache: Any, **kwargs: Any) -> torch.Tensor:
        """FlashInfer's `forward`; see there and `plan`.

        Raises:
            ValueError: a window or a soft cap is asked for that was not compiled in.
        """
        self._use_window(kwargs.pop("window_left", NO_WINDOW))
        soft_cap = kwargs.get("logits_soft_cap") or 0.0
        if (soft_cap > 0) != self._variant.soft_cap:
            raise ValueError(f"{self._variant.name} cannot run with a soft cap of {soft_cap}: choose the other form")
        output: torch.Tensor = super().forward(q, paged_kv_cache, **kwargs | {"causal": self._diagonal})
        return output

    def run(self, q: torch.Tensor, paged_kv_cache: Any, **kwargs: Any) -> Any:
        """FlashInfer's `run`, given the bit sets."""
        return super().run(q, paged_kv_cache, self._bits, self._bits.shape[1], self._window, **kwargs)

    def _use_window(self, window: int) -> None:
        if window != NO_WINDOW and not self._variant.window:
            raise ValueError(f"{self._variant.name} has no sliding window, and {window} was asked for")
        self._window = window
