"""The draft tree: what drafters produce and what one verify step of the target checks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Self

import numpy as np

from agentspec.errors import DraftTreeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

ROOT = -1
"""Parent of the nodes that follow the last committed token directly."""

BITS_PER_WORD = 64


class Source(IntEnum):
    """Where a drafted token came from; the values of `DraftTree.source` and the keys of a receipt."""

    REQUEST = 0
    """Prompt and output so far."""
    REPOSITORY = 1
    """The repository index."""
    PREDICTION = 2
    """The client's predicted output."""
    EDIT = 3
    """The file being edited, followed by the edit cursor, raw or through an escaped view."""
    FORMAT = 4
    """A draft start that the edit format supplied."""
    SYNTAX = 5
    """Identifiers in scope, from tree-sitter."""
    EAGLE3 = 6
    """The EAGLE-3 head."""


@dataclass(frozen=True, slots=True, eq=False)
class DraftTree:
    """A tree of candidate continuations of the last committed token, as a structure of arrays.

    Nodes are in topological order: a parent precedes its children. There is no padding and no separator token.

    Attributes:
        tokens: `int32[N]`, token ids, all >= 0.
        parents: `int32[N]`, index of each node's parent, `ROOT` for a child of the last committed token.
        prob: `float32[N]`, estimated probability that the node is accepted given that its parent was.
        source: `uint8[N]`, a `Source` per node.
    """

    tokens: NDArray[np.int32]
    parents: NDArray[np.int32]
    prob: NDArray[np.float32]
    source: NDArray[np.uint8]

    @classmethod
    def empty(cls) -> Self:
        """The tree of a drafter that has nothing to say; verifying it is plain decoding."""
        return cls(np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.float32), np.empty(0, np.uint8))

    def __len__(self) -> int:
        return len(self.tokens)

    def depths(self) -> NDArray[np.int32]:
        """`int32[N]`: distance of each node from the last committed token; its direct children have 1."""
        depths: list[int] = []
        for parent in self.parents.tolist():
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return np.array(depths, np.int32)

    def path_probabilities(self) -> NDArray[np.float32]:
        """`float32[N]`: estimated probability that each node and all its ancestors are accepted."""
        path: list[float] = []
        for parent, prob in zip(self.parents.tolist(), self.prob.tolist(), strict=True):
            path.append(prob if parent == ROOT else prob * path[parent])
        return np.array(path, np.float32)

    def ancestor_mask(self) -> NDArray[np.bool_]:
        """`bool[N, N]`: entry (i, j) is set when node i attends to node j, itself included."""
        mask = np.eye(len(self), dtype=np.bool_)
        for node, parent in enumerate(self.parents.tolist()):
            if parent != ROOT:
                mask[node] |= mask[parent]
        return mask

    def ancestor_bits(self) -> NDArray[np.uint64]:
        """`uint64[N, ceil(N / 64)]`: `ancestor_mask` packed; node j is bit `j % 64` of word `j // 64`."""
        words = -(-len(self) // BITS_PER_WORD)
        bits = np.zeros((len(self), words), np.uint64)
        for node, parent in enumerate(self.parents.tolist()):
            if parent != ROOT:
                bits[node] = bits[parent]
            bits[node, node // BITS_PER_WORD] |= np.uint64(1 << (node % BITS_PER_WORD))
        return bits

    def links(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """First child and next sibling of the last committed token (entry 0) and of node i (entry i + 1).

        Returns:
            Two `int32[N + 1]` arrays of node indices, -1 where there is none; siblings are in ascending order.
        """
        first_child = np.full(len(self) + 1, -1, np.int32)
        next_sibling = np.full(len(self) + 1, -1, np.int32)
        for node in range(len(self) - 1, -1, -1):
            slot = self.parents[node] + 1
            next_sibling[node + 1] = first_child[slot]
            first_child[slot] = node
        return first_child, next_sibling

    def accepted_path(self, emitted: Sequence[int]) -> list[int]:
        """Nodes, from the root on, whose tokens are the first of those that the target emitted."""
        child = {edge: node for node, edge in enumerate(zip(self.parents.tolist(), self.tokens.tolist(), strict=True))}
        path: list[int] = []
        for token in emitted:
            node = child.get((path[-1] if path else ROOT, token))
            if node is None:
                break
            path.append(node)
        return path

    def validate(self, max_nodes: int, max_depth: int) -> None:
        """Check every invariant of the contract.

        Raises:
            DraftTreeError: with the first rule that is broken and the node that breaks it.
        """
        self._validate_arrays(max_nodes)
        # Trees are checked at every step and are small: one pass over lists is faster than several over arrays.
        depths: list[int] = []
        seen: set[tuple[int, int]] = set()
        nodes = zip(self.parents.tolist(), self.tokens.tolist(), self.prob.tolist(), strict=True)
        for node, (parent, token, prob) in enumerate(nodes):
            if not ROOT <= parent < node:
                raise DraftTreeError(f"node {node} has parent {parent}; a parent precedes its child")
            if token < 0:
                raise DraftTreeError(f"node {node} holds token {token}; only real tokens may be drafted")
            if not 0 <= prob <= 1:
                raise DraftTreeError(f"node {node} has probability {prob}, outside [0, 1]")
            depths.append(1 if parent == ROOT else depths[parent] + 1)
            if depths[-1] > max_depth:
                raise DraftTreeError(f"node {node} has depth {depths[-1]}, beyond the bound of {max_depth}")
            if (parent, token) in seen:
                raise DraftTreeError(f"node {node} repeats token {token} among the children of {parent}")
            seen.add((parent, token))

    def _validate_arrays(self, max_nodes: int) -> None:
        expected = {"tokens": np.int32, "parents": np.int32, "prob": np.float32, "source": np.uint8}
        for name, dtype in expected.items():
            array = getattr(self, name)
            if array.dtype != dtype or array.shape != (len(self.tokens),):
                raise DraftTreeError(
                    f"{name} is {array.dtype}{list(array.shape)}; expected {np.dtype(dtype)}[{len(self.tokens)}]"
                )
        if len(self) > max_nodes:
            raise DraftTreeError(f"{len(self)} nodes exceed the bound of {max_nodes}")
