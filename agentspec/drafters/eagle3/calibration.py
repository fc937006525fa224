"""From the head's own probabilities to those with which its nodes are accepted."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from agentspec.drafters.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from agentspec.drafters.tree import DraftTree

LEARNING_RATE = 0.02
"""Step of the online correction; small, since a verdict judges only a few nodes."""

FLOOR = 1e-4
"""Probabilities are kept this far from 0 and 1, where log-odds are infinite."""


class Calibration:
    """A line through the log-odds, `offset + slope * log_odds(p)`, corrected by every verdict.

    Args:
        offset: to begin with.
        slope: to begin with.
    """

    def __init__(self, offset: float = 0.0, slope: float = 1.0) -> None:
        self.offset = offset
        self.slope = slope

    def apply(self, prob: NDArray[np.float32]) -> NDArray[np.float32]:
        """`float32[N]`, calibrated."""
        clipped = np.clip(prob.astype(np.float64), FLOOR, 1 - FLOOR)
        odds = self.offset + self.slope * np.log(clipped / (1 - clipped))
        return (1 / (1 + np.exp(-odds))).astype(np.float32)

    def observe(self, tree: DraftTree, tokens: Sequence[int]) -> None:
        """Learn from what the target emitted after `tree`'s root.

        Every child of a node on the accepted path was judged: it was the target's token or not.

        Args:
            tree: with uncalibrated probabilities.
            tokens: the target's tokens, the bonus token last.
        """
        parent = ROOT
        for token in tokens:
            children = np.flatnonzero(tree.parents == parent)
            right = [child for child in children.tolist() if tree.tokens[child] == token]
            for child in children.tolist():
                self._learn(float(tree.prob[child]), child in right)
            if not right:
                return
            parent = right[0]

    def _learn(self, prob: float, hit: bool) -> None:
        clipped = min(max(prob, FLOOR), 1 - FLOOR)
        odds = math.log(clipped / (1 - clipped))
        error = hit - 1 / (1 + math.exp(-(self.offset + self.slope * odds)))
        self.offset += LEARNING_RATE * error
        self.slope += LEARNING_RATE * error * odds
