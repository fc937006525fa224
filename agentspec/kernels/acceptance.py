"""Exact acceptance: which path of a draft tree the target follows.

The target always draws its own token, from its own distribution at the node reached; the draft only decides whether
the next node's logits are already there. So the emitted text is the target's for *any* tree, whatever its sources and
however wrong its probabilities: no draft distribution enters, and no residual is ever sampled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentspec.drafters.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentspec.drafters.tree import DraftTree


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one verify step emitted.

    Attributes:
        tokens: the drawn tokens, in order; at least one.
        path: accepted nodes, in order. One fewer than the tokens, or as many when the text ended on a drafted token.
    """

    tokens: tuple[int, ...]
    path: tuple[int, ...]


def walk(tree: DraftTree, draw: Callable[[int], int], ends: Callable[[int], bool]) -> Verdict:
    """Follow the target through a draft tree until it leaves it or the text ends.

    Args:
        tree: the verified draft.
        draw: the target's token after node `n` (`ROOT`: after the last committed token). Called once for each node
            on the path, in order, so that what it keeps (penalty counts, a grammar) is always that of the path.
        ends: whether the text ends with this drawn token; called once per token, in order.
    """
    children = {edge: node for node, edge in enumerate(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True))}
    tokens: list[int] = []
    path: list[int] = []
    node = ROOT
    while True:
        token = draw(node)
        tokens.append(token)
        child = children.get((node, token))
        if child is not None:
            path.append(child)
        if ends(token) or child is None:
            return Verdict(tuple(tokens), tuple(path))
        node = child
