"""The mask of a verify step as one bit set per row.

Rows are those of `agentspec.kernels.tree_mask`: row 0 is the last committed token, row n + 1 is node n. Row i's bit set
holds bit j when row i attends to row j. That is all that a verify step needs: the committed prefix is visible to every
row, so no mask over it exists. A tree of up to 63 nodes fits one 64-bit word per row.

Bit sets travel as `int64`, whose 64 bits are what matters (torch has no unsigned arithmetic).
"""

from __future__ import annotations

import torch

BITS_PER_WORD = 64


def words_for(width: int) -> int:
    """Words of the bit set of a row, for trees of `width` rows."""
    return -(-width // BITS_PER_WORD)


def pack_mask(mask: torch.Tensor) -> torch.Tensor:
    """Bit sets of rows.

    Args:
        mask: `bool[..., W, W]`, entry (i, j) set when row i attends to row j.

    Returns:
        `int64[..., W, words]`, bit `j % 64` of word `j // 64` for row j.
    """
    width = mask.shape[-1]
    padding = words_for(width) * BITS_PER_WORD - width
    spread = torch.nn.functional.pad(mask, (0, padding)).view(*mask.shape[:-1], -1, BITS_PER_WORD)
    places = torch.arange(BITS_PER_WORD, device=mask.device)
    # One bit each, so the sum is an or; the sign bit is the word's highest.
    packed: torch.Tensor = spread.long().bitwise_left_shift(places).sum(-1)
    return packed


def unpack_bits(bits: torch.Tensor, width: int) -> torch.Tensor:
    """The mask `bool[..., W, width]` that `pack_mask` packed into `bits`, `int64[..., W, words]`."""
    shifts = torch.arange(BITS_PER_WORD, device=bits.device)
    spread = bits[..., None].bitwise_right_shift(shifts).bitwise_and(1).bool()
    return spread.flatten(-2)[..., :width]


def distances(mask: torch.Tensor) -> torch.Tensor:
    """How many positions before a row each of its ancestors lies.

    Rows of one depth share a position, so the distance between row i and its ancestor j is the number of rows on the
    path between them: the set bits of row i above bit j.

    Args:
        mask: `bool[..., W, W]` of trees in topological order.

    Returns:
        `int64[..., W, W]`; meaningful where the mask is set.
    """
    counted = mask.long()
    return counted.sum(-1, keepdim=True) - counted.cumsum(-1)
