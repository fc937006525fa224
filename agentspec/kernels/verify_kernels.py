"""The attention kernels that can verify a tree, and where each of them is exact."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentspec.kernels.flashinfer_tree.variant import TreeVariant

TILE_ROWS = 128
"""Query rows of FA2's largest tile; its rows are pairs of a query and one of the heads that share a key head."""
WIDE_HEAD = 256
"""From this head dimension on tiles hold 64 rows at most."""


class VerifyKernel(StrEnum):
    """A way to compute `agentspec.kernels.paged_tree_attention` on FlashInfer."""

    OWNED = "owned"
    """Our variant in one pass; it decides every score."""
    DIAGONAL = "diagonal"
    """Our variant in FlashInfer's causal mode, which asks it in the last tiles alone."""
    TWO_PART = "two_part"
    """The prefix without a mask on FlashAttention 2, our variant over the rows, merged by log-sum."""
    TWO_PART_FA3 = "two_part_fa3"
    """The same with the prefix on FlashAttention 3 (Hopper)."""
    STOCK = "stock"
    """FlashInfer's own custom mask over rows and context, packed for every step."""


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


def exact_kernels(variant: TreeVariant, width: int, group: int) -> frozenset[VerifyKernel]:
    """Kernels that are exact for verify steps of one shape.

    A sliding window crosses the border between the two parts and is counted in rows by FlashInfer's own mask, so one
    that counts positions leaves the owned kernel alone. FlashAttention 3 takes no 8-bit cache under 16-bit queries.

    Args:
        variant: element types and rules of the scores.
        width: rows of a request.
        group: query heads per key head.
    """
    if variant.window:
        return frozenset({VerifyKernel.OWNED})
    kernels = {VerifyKernel.OWNED, VerifyKernel.TWO_PART, VerifyKernel.STOCK}
    if fits_one_tile(width, group, variant.head_dim):
        kernels.add(VerifyKernel.DIAGONAL)
    if variant.cache_dtype == variant.query_dtype:
        kernels.add(VerifyKernel.TWO_PART_FA3)
    return frozenset(kernels)
