"""EAGLE-3's trees out of what SGLang's own worker drafted: on the host, or left on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from agentspec.drafters.tree import ROOT, DraftTree, Source

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class EagleNodes:
    """The trees of a batch on the device, n nodes each, every parent before its children.

    Attributes:
        tokens: `int32[B, n]`; -1 for nodes whose parent was not kept.
        parents: `int32[B, n]`, -1 for children of the root.
        reach: `float32[B, n]`, estimated probability that the node is reached.
    """

    tokens: Tensor
    parents: Tensor
    reach: Tensor


def eagle_nodes(
    tokens: Tensor, parent_list: Tensor, selected: Tensor, *, branches: int, scores: Tensor | None, chain: float
) -> EagleNodes:
    """What SGLang's draft selected, without a transfer to the host.

    Args:
        tokens: `[B, n]`, of the selected candidates.
        parent_list: `[B, P]`, the candidate that each group of `branches` candidates hangs on; the first group hangs on
            the root.
        selected: `[B, n]`, the candidates that were kept, ascending.
        branches: of the draft; with one the tree is a chain.
        scores: `[B, n]`, path probabilities; None for a chain.
        chain: probability of each node of a chain, given its parent.
    """
    batch, nodes = tokens.shape
    place = torch.arange(nodes, dtype=torch.int32, device=tokens.device)
    if branches == 1 or scores is None:
        reach = torch.tensor(chain, dtype=torch.float32, device=tokens.device) ** (place + 1)
        return EagleNodes(tokens.int(), (place - 1).repeat(batch, 1), reach.repeat(batch, 1))
    selected, parent_list = selected.long().contiguous(), parent_list.long()
    group = selected // branches
    # A draft of one step has no parents to list: all of its nodes hang on the root.
    above = parent_list.gather(1, group) if parent_list.shape[1] else torch.zeros_like(group)
    found = torch.searchsorted(selected, above.contiguous()).clamp_(max=nodes - 1)
    on_root = group == 0
    kept = on_root | (selected.gather(1, found) == above)
    parents = torch.where(on_root, -1, found).int()
    return EagleNodes(torch.where(kept, tokens, -1).int(), parents, scores.float())


def eagle_trees(verify_input: Any, batch: int, scores: Tensor | None, chain_probability: float) -> list[DraftTree]:
    """EAGLE-3's trees out of the verify input that SGLang's own worker built.

    Args:
        verify_input: `EagleVerifyInput` of n nodes per request.
        batch: B.
        scores: `[B, n - 1]`, path probabilities of the drafted nodes; None for a chain.
        chain_probability: of each node of a chain, given its parent.
    """
    tokens = verify_input.draft_token.view(batch, -1).cpu().numpy().astype(np.int32)
    first_child = verify_input.retrieve_next_token.cpu().numpy()
    next_sibling = verify_input.retrieve_next_sibling.cpu().numpy()
    reach = None if scores is None else scores.float().cpu().numpy()
    return [
        _eagle_tree(tokens[b], first_child[b], next_sibling[b], None if reach is None else reach[b], chain_probability)
        for b in range(batch)
    ]


def _eagle_tree(
    tokens: NDArray[np.int32],
    first_child: NDArray[np.int64],
    next_sibling: NDArray[np.int64],
    reach: NDArray[np.float32] | None,
    chain_probability: float,
) -> DraftTree:
    """One tree; nodes that no link reaches are left out, and so are repeated siblings."""
    parent_of: dict[int, int] = {}
    for node in range(len(tokens)):
        child = int(first_child[node])
        while child != -1:
            parent_of[child] = node
            child = int(next_sibling[child])
    place: dict[int, int] = {0: ROOT}
    nodes: list[tuple[int, int, float]] = []
    taken: set[tuple[int, int]] = set()
    for node in sorted(parent_of):
        parent = parent_of[node]
        edge = (place.get(parent, ROOT), int(tokens[node]))
        if parent not in place or edge in taken:
            continue
        taken.add(edge)
        place[node] = len(nodes)
        nodes.append((edge[1], edge[0], _conditional(node, parent, reach, chain_probability)))
    return DraftTree(
        np.array([token for token, _, _ in nodes], np.int32),
        np.array([parent for _, parent, _ in nodes], np.int32),
        np.array([prob for _, _, prob in nodes], np.float32),
        np.full(len(nodes), Source.EAGLE3, np.uint8),
    )


def _conditional(node: int, parent: int, reach: NDArray[np.float32] | None, chain_probability: float) -> float:
    if reach is None:
        return chain_probability
    above = 1.0 if parent == 0 else float(reach[parent - 1])
    ratio = float(reach[node - 1]) / above if above > 0 else 0.0
    return min(max(ratio, 0.0), 1.0) if np.isfinite(ratio) else 0.0
