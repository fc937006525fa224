"""Drafting with an EAGLE-3 head: it follows the target and grows a tree by path probability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from agentspec.drafters.eagle3.runner import SLOT_MULTIPLE, Behind
from agentspec.drafters.tree import ROOT, DraftTree, Source

if TYPE_CHECKING:
    from torch import Tensor

    from agentspec.drafters.eagle3.runner import HeadRunner

WINDOW = 128
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


class _GrowingTree:
    """A tree that grows level by level, each time below its likeliest leaves."""

    def __init__(self, growth: Growth) -> None:
        self._growth = growth
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self._probs: list[float] = []
        self._paths: list[float] = []

    def add_level(self, expanded: list[int], ids: list[list[int]], probs: list[list[float]]) -> list[int]:
        """Add children.

        Args:
            expanded: nodes that get them, or `ROOT` alone.
            ids: likeliest tokens after each of them, best first.
            probs: their probabilities.

        Returns:
            The likeliest new nodes, `Growth.width` at most, best first.
        """
        first = len(self.tokens)
        for parent, tokens, shares in zip(expanded, ids, probs, strict=True):
            reach = 1.0 if parent == ROOT else self._paths[parent]
            for token, share in zip(tokens, shares, strict=True):
                if reach * share < self._growth.min_path_prob:
                    break
                self.tokens.append(token)
                self.parents.append(parent)
                self._probs.append(share)
                self._paths.append(reach * share)
        fresh = range(first, len(self.tokens))
        return sorted(fresh, key=lambda node: -self._paths[node])[: self._growth.width]

    @property
    def expected_tokens(self) -> float:
        """Tokens that a verify step over the tree emits on average, the bonus token among them."""
        return 1.0 + sum(self._paths)

    def promise(self, nodes: list[int]) -> float:
        """Expected accepted tokens among `nodes`, and the most that their children can bring."""
        return sum(self._paths[node] for node in nodes)

    def finish(self) -> DraftTree:
        """The tree as arrays."""
        return DraftTree(
            np.array(self.tokens, np.int32),
            np.array(self.parents, np.int32),
            np.array(self._probs, np.float32),
            np.full(len(self.tokens), Source.EAGLE3, np.uint8),
        )


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
        self._last: tuple[Tensor, Tensor] | None = None

    @staticmethod
    def slots_for(growth: Growth) -> int:
        """Slots that the runner of a session needs."""
        needed = 2 * WINDOW + growth.slots
        return -(-needed // SLOT_MULTIPLE) * SLOT_MULTIPLE

    @torch.inference_mode()
    def read(self, features: Tensor, following: Tensor, skipped: int = 0) -> None:
        """Take in tokens that the target has read.

        Args:
            features: `[q, 3 * hidden]`, the target's streams at these tokens.
            following: `int64[q]`, the token after each of them.
            skipped: tokens before them whose streams are not known (a reused prefix); the head goes without.
        """
        drop = max(0, len(following) - WINDOW)
        self._position += skipped + drop
        features, following = features[drop:], following[drop:]
        rows = len(following)
        self._runner.make_room(rows + self._growth.slots, WINDOW)
        positions = torch.arange(self._position, self._position + rows)
        self._last = self._runner.run(self._runner.fuse(features), following, positions, Behind(last_only=True))
        self._runner.length += rows
        self._position += rows

    @torch.inference_mode()
    def draft(self, level_gain: float | None = None) -> DraftTree:
        """The head's tree after the last token read; empty before the first `read`.

        Args:
            level_gain: accepted tokens that a pass of the head must promise for each token that the step emits
                without it: the time of a pass in steps; None: `Growth.level_gain`.
        """
        gain = self._growth.level_gain if level_gain is None else level_gain
        tree = _GrowingTree(self._growth)
        if self._last is None:
            return tree.finish()
        growth = self._growth
        stream, logits = self._last
        expanded = [ROOT]
        # The nodes that were expanded, level by level, as the runner stores them; each row shows a node's ancestors.
        slot_of: dict[int, int] = {}
        visible = torch.zeros(growth.slots, growth.slots, dtype=torch.bool)
        for level in range(growth.depth):
            nodes = tree.add_level(expanded, *self._runner.likeliest(logits, growth.children))
            if level + 1 == growth.depth or not nodes or tree.promise(nodes) < gain * tree.expected_tokens:
                break
            start, stop = len(slot_of), len(slot_of) + len(nodes)
            for slot, node in enumerate(nodes, start):
                if level:
                    visible[slot] |= visible[slot_of[tree.parents[node]]]
                visible[slot, slot] = True
                slot_of[node] = slot
            rows = [expanded.index(tree.parents[node]) for node in nodes]
            following = torch.tensor([tree.tokens[node] for node in nodes])
            positions = torch.full_like(following, self._position + level)
            behind = Behind(last_only=False, mask=visible[start:stop, :stop].contiguous())
            stream, logits = self._runner.run(stream[rows], following, positions, behind)
            expanded = nodes
        return tree.finish()
