"""Moving the keys and values of accepted rows to the slots where the text continues, in all layers at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from collections.abc import Sequence

_BLOCK = 1024


class PathCompaction:
    """Compacts the caches of all layers of one model; made once, since the addresses of caches do not change.

    Args:
        caches: keys and values of every layer, each `[slots, ...]`, contiguous, rows of one size in bytes.

    Raises:
        ValueError: a cache is not contiguous, or rows differ in size or are no multiple of 4 bytes.
    """

    def __init__(self, caches: Sequence[torch.Tensor]) -> None:
        sizes = {one[0].numel() * one.element_size() for one in caches}
        if len(sizes) != 1 or min(sizes) % 4 or not all(one.is_contiguous() for one in caches):
            raise ValueError(f"caches must be contiguous with rows of one size, a multiple of 4 bytes; got {sizes}")
        self._caches = tuple(caches)  # kept alive: only their addresses go to the kernel
        self._words = sizes.pop() // 4
        addresses = [one.data_ptr() for one in caches]
        self._addresses = torch.tensor(addresses, dtype=torch.int64, device=caches[0].device)

    def __call__(
        self, slots: torch.Tensor, path: torch.Tensor, counts: torch.Tensor, *, through_batch: bool = False
    ) -> None:
        """Move row `path[b, i]` of every request to the slot of its row i, for i below `counts[b]`.

        Args:
            slots: `int64[B, W]`, cache slot of every row of the verify step.
            path: `int32[B, W]`, accepted rows, strictly increasing (so a row moves forward or stays).
            counts: `int32[B]`.
            through_batch: rows are counted through the batch, as in `RowVerdict`, not from each request's first.
        """
        batch, width = path.shape
        grid = (batch, len(self._caches), triton.cdiv(self._words, _BLOCK))
        _move[grid](self._addresses, slots, path, counts, width, self._words, THROUGH_BATCH=through_batch, BLOCK=_BLOCK)


def compact_rows(rows: torch.Tensor, path: torch.Tensor, counts: torch.Tensor) -> None:
    """Move the accepted rows of every request of a tensor to the front of its rows, in place.

    Args:
        rows: `[B * W, ...]`, contiguous, rows a multiple of 4 bytes.
        path: `int32[B, W]`, accepted rows counted through the batch, as in `RowVerdict`.
        counts: `int32[B]`.

    Raises:
        ValueError: rows are not laid out as asked for.
    """
    size = rows[0].numel() * rows.element_size()
    if size % 4 or not rows.is_contiguous():
        raise ValueError(f"rows must be contiguous and a multiple of 4 bytes; these have {size}")
    batch, width = path.shape
    words = size // 4
    flat = rows.view(len(rows), -1).view(torch.int32)
    _move_rows[(batch, triton.cdiv(words, _BLOCK))](flat, path, counts, width, words, BLOCK=_BLOCK)


@triton.jit
def _move(
    addresses,
    slots,
    path,
    counts,
    width,
    words,
    THROUGH_BATCH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One request, one cache, one block of a row's words.

    Rows are moved in order. Row i's target is the slot of row i and later sources are rows after i, so nothing is
    overwritten before it has been read.
    """
    first = tl.program_id(0) * width
    cache = tl.load(addresses + tl.program_id(1)).to(tl.pointer_type(tl.int32))
    columns = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < words
    for i in range(tl.load(counts + tl.program_id(0))):
        row = tl.load(path + first + i)
        if THROUGH_BATCH:
            row -= first
        if row != i:
            source = tl.load(slots + first + row) * words
            target = tl.load(slots + first + i) * words
            moved = tl.load(cache + source + columns, mask=inside)
            tl.store(cache + target + columns, moved, mask=inside)


@triton.jit
def _move_rows(rows, path, counts, width, words, BLOCK: tl.constexpr):
    """One request and one block of a row's words; see `_move` for why nothing is lost."""
    first = tl.program_id(0) * width
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < words
    for i in range(tl.load(counts + tl.program_id(0))):
        row = tl.load(path + first + i)
        if row != first + i:
            moved = tl.load(rows + row.to(tl.int64) * words + columns, mask=inside)
            tl.store(rows + (first + i).to(tl.int64) * words + columns, moved, mask=inside)
