"""Drafting with an EAGLE-3 head: it follows the target and grows a tree by path probability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from agentspec.drafters.eagle3.runner import SLOT_MULTIPLE
from agentspec.drafters.tree import DraftTree, Source
from agentspec.kernels import _native

if TYPE_CHECKING:
    from torch import Tensor

    from agentspec.drafters.eagle3.runner import HeadRunner

WINDOW = 256
"""Most committed tokens of a prompt that the head looks back on, and fewest that it remembers. Reading them costs the
first draft of a request; the target's streams carry what lies before."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Bounds of a head's tree.

    Attributes:
        depth: most levels, each of which is one pass of the head.
        width: nodes of a level that are expanded further.
        children: likeliest next tokens taken of each expanded node.
        min_path_prob: nodes whose path is less likely are not drafted.
        level_gain: see `Eagle3Session.draft`, where the caller does not say.
    """

    depth: int = 5
    width: int = 6
    children: int = 6
    min_path_prob: float = 0.02
    level_gain: float = 0.05

    @property
    def slots(self) -> int:
        """Most nodes that the head reads itself."""
        return self.depth * self.width


class Eagle3Session:
    """The head's state of one text. Not thread-safe.

    `read` follows the target: for every token that the target has read, its captured streams and the token that came
    after it. `draft` proposes what follows the last of these.

    Args:
        runner: of the head, with nothing read; see `slots_for`.
        growth: bounds of the trees.
    """

    def __init__(self, runner: HeadRunner, growth: Growth) -> None:
        self._runner = runner
        self._growth = growth
        self._position = 0
        self._empty = True

    @staticmethod
    def slots_for(growth: Growth) -> int:
        """Slots that the runner of a session needs."""
        needed = 2 * WINDOW + growth.slots
        return -(-needed // SLOT_MULTIPLE) * SLOT_MULTIPLE

    def read(self, features: Tensor, following: Tensor, skipped: int = 0) -> None:
        """Take in tokens that the target has read.

        Args:
            features: `[q, 3 * hidden]`, the target's streams at these tokens.
            following: `int64[q]`, the token after each of them.
            skipped: tokens before them whose streams are not known (a reused prefix); the head goes without.
        """
        rows = len(following)
        self._position += skipped
        if rows > WINDOW:
            self._position += rows - WINDOW
            features, following, rows = features[-WINDOW:], following[-WINDOW:], WINDOW
        self._runner.make_room(rows + self._growth.slots, WINDOW)
        self._runner.read(features, following, self._position)
        self._position += rows
        self._empty = False

    def draft(self, level_gain: float | None = None) -> DraftTree:
        """The head's tree after the last token read; empty before the first `read`.

        Args:
            level_gain: accepted tokens that a pass of the head must promise for each token that the step emits
                without it: the time of a pass in steps; None: `Growth.level_gain`.
        """
        growth = self._growth
        tree = _native.TreeGrowth(
            depth=growth.depth,
            width=growth.width,
            children=growth.children,
            min_path_prob=growth.min_path_prob,
            level_gain=growth.level_gain if level_gain is None else level_gain,
        )
        if not self._empty:
            self._runner.grow(tree, self._position)
        return DraftTree(tree.tokens, tree.parents, tree.probs, np.full(len(tree.tokens), Source.EAGLE3, np.uint8))
