"""What one verify step feeds the target: the last committed token followed by the nodes of the draft tree.

Row 0 is the last committed token, row `n + 1` is node `n`. Every row sees the whole committed prefix, so the mask
covers these rows alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentspec.drafters.tree import DraftTree


@dataclass(frozen=True, slots=True)
class VerifyRows:
    """Inputs of one verify step of one sequence.

    Attributes:
        tokens: `int64[N + 1]`.
        positions: `int64[N + 1]`, position in the text; nodes of one depth share it.
        mask: `bool[N + 1, N + 1]`, entry (i, j) set when row i attends to row j; None when that is causal.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor | None


def verify_rows(tree: DraftTree, last_token: int, position: int) -> VerifyRows:
    """Lay out a verify step.

    Args:
        tree: the draft after `last_token`; may be empty.
        last_token: the committed token whose keys and values are not in the cache yet.
        position: its position in the text.
    """
    # With numpy, whose calls on arrays this small take a fraction of torch's.
    count = len(tree)
    tokens = np.empty(count + 1, np.int64)
    tokens[0] = last_token
    tokens[1:] = tree.tokens
    depths = np.zeros(count + 1, np.int64)
    depths[1:] = tree.depths()
    mask = None
    # Depths 0, 1, 2, ... leave each node only its predecessor as parent: a chain.
    if not np.array_equal(depths, np.arange(count + 1)):
        seen = np.zeros((count + 1, count + 1), np.bool_)
        seen[:, 0] = True
        seen[1:, 1:] = tree.ancestor_mask()
        mask = torch.from_numpy(seen)
    return VerifyRows(torch.from_numpy(tokens), torch.from_numpy(depths + position), mask)


def accepted_rows(path: Sequence[int]) -> torch.Tensor:
    """`int64[A + 1]`: rows of the verify step whose keys and values stay: the last token's and the accepted path's."""
    return torch.tensor([0, *(node + 1 for node in path)], dtype=torch.int64)
