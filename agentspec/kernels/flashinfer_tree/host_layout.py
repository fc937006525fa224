"""Sizes of a verify step that the host knows, so that planning need not ask the device for them."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class HostLayout:
    """The layout of one step.

    FlashInfer's `plan` reads its index pointers on the host. Given as device tensors they are copied back, which waits
    for all that the device still has to do; given as host tensors they are not.

    Attributes:
        width: rows of every request.
        kv_lengths: `int32[B]` on the host, tokens of every request, its rows included.
    """

    width: int
    kv_lengths: torch.Tensor

    def row_indptr(self) -> torch.Tensor:
        """`int32[B + 1]`: first row of every request."""
        return torch.arange(len(self.kv_lengths) + 1, dtype=torch.int32) * self.width

    def page_indptr(self, page_size: int) -> torch.Tensor:
        """`int32[B + 1]`: first page of every request."""
        pages = torch.nn.functional.pad(self._pages(page_size), (1, 0))
        return pages.cumsum(0).int()

    def last_page_lengths(self, page_size: int) -> torch.Tensor:
        """`int32[B]`: tokens in the last page of every request."""
        return self.kv_lengths - (self._pages(page_size) - 1) * page_size

    def _pages(self, page_size: int) -> torch.Tensor:
        return (self.kv_lengths + page_size - 1) // page_size
