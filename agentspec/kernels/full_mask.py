"""The mask of a verify step over its whole context, as kernels take it that know no trees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable


def full_mask(tail: torch.Tensor, prefixes: Iterable[int]) -> torch.Tensor:
    """Every request's W x (prefix + W) entries, one request after the other, `bool[entries]`.

    Args:
        tail: `bool[B, W, W]`, what every row sees of the rows.
        prefixes: committed tokens of every request, all of them visible.
    """
    width = tail.shape[1]
    rows = [
        torch.cat((one.new_ones(width, prefix), one), dim=1).flatten()
        for one, prefix in zip(tail, prefixes, strict=True)
    ]
    return torch.cat(rows)
