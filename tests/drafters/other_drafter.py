"""A drafter beside the texts, for tests."""

from __future__ import annotations

import numpy as np

from agentspec.drafters.tree import DraftTree, Source

OWN_WORD = {
    "both": np.array([0, 0, 1, 0, 0], np.float32),
    "texts": np.array([0, 1, 0, 0, 0], np.float32),
    "other": np.array([0, 0, 1, 0, 0], np.float32),
}
"""Fusion that takes each drafter at its word, and the other drafter's where both speak."""


def extra_tree(token: list[int], parent: list[int], prob: list[float]) -> DraftTree:
    """Its tree."""
    source = np.full(len(token), Source.EAGLE3, np.uint8)
    return DraftTree(np.array(token, np.int32), np.array(parent, np.int32), np.array(prob, np.float32), source)
