"""The draft trees of a batch as the input of SGLang's verify step. Runs inside SGLang only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sglang.kernels.ops.speculative.spec_tree import TreeMaskMode
from sglang.srt.speculative.eagle_info import EagleVerifyInput
from sglang.srt.speculative.eagle_utils import default_tree_mask_mode

from agentspec.drafters.tree import ROOT, DraftTree, Source
from agentspec.engines.sglang._native import pack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from agentspec.engines.sglang.penalties import PathPenalties

IRREGULAR = -1
"""SGLang's branching factor of trees without a fixed one."""
CHAIN = 1
"""SGLang's branching factor of a tree that is a chain; its attention then needs no mask."""


@dataclass
class AgentspecVerifyInput(EagleVerifyInput):  # type: ignore[misc]
    """Our trees; what differs from EAGLE's is their shape and how they are sampled.

    Attributes:
        trees: one per request.
        tail_mask: `bool[B, W, W]` on the device, row i marks the nodes that node i sees.
        penalties: per request, where it asks for any.
        truncated: per request, whether top-k, top-p or min-p cut its distribution.
        sampler: SGLang's own sampler of the target.
    """

    trees: list[DraftTree] = field(default_factory=list)
    tail_mask: Tensor | None = None
    penalties: list[PathPenalties | None] = field(default_factory=list)
    truncated: list[bool] = field(default_factory=list)
    sampler: Any = None

    @property
    def max_tree_depth(self) -> int:
        """Nodes on the longest path that a tree of this width can hold, the root included."""
        return int(self.draft_token_num)

    @property
    def tree_topk(self) -> int:
        """Branching factor for SGLang's kernels."""
        return CHAIN if self.draft_token_num == 1 else IRREGULAR


def build_verify_input(
    trees: list[DraftTree],
    roots: NDArray[np.int64],
    lengths: NDArray[np.int64],
    width: int,
    *,
    target_worker: Any,
    device: str,
    penalties: list[PathPenalties | None],
    truncated: list[bool],
) -> AgentspecVerifyInput:
    """Lay out trees for a verify step of `width` nodes per request.

    Args:
        trees: one per request, each of less than `width` nodes.
        roots: `int64[B]`, the last committed tokens.
        lengths: `int64[B]`, committed tokens before them.
        width: nodes per request, the root included; shorter trees are padded with nodes that no link leads to.
        target_worker: SGLang's worker of the target.
        device: where the target is.
        penalties: per request, or None.
        truncated: per request, whether its distribution is cut before sampling.
    """
    packed = pack([tree.tokens for tree in trees], [tree.parents for tree in trees], roots, lengths, width)
    tokens, positions, mask, first_child, next_sibling = (
        torch.from_numpy(array).to(device, non_blocking=True) for array in packed
    )
    runner = target_worker.model_runner
    return AgentspecVerifyInput(
        draft_token=tokens.flatten(),
        custom_mask=_attention_mask(mask, lengths, runner.attn_backend),
        positions=positions.flatten(),
        retrieve_index=torch.arange(tokens.numel(), device=device).view(tokens.shape),
        retrieve_next_token=first_child,
        retrieve_next_sibling=next_sibling,
        retrieve_cum_len=None,
        spec_steps=width - 1,
        topk=IRREGULAR,
        draft_token_num=width,
        capture_hidden_mode=None,
        seq_lens_sum=None,
        seq_lens_cpu=None,
        trees=trees,
        tail_mask=mask,
        penalties=penalties,
        truncated=truncated,
        sampler=runner.sampler,
    )


def _attention_mask(tail: Tensor, lengths: NDArray[np.int64], attention_backend: Any) -> Tensor:
    """The mask in the layout that the attention backend reads: the tail alone, or with the prefix before it."""
    owned = attention_backend.verify_mask
    layout = default_tree_mask_mode() if owned is None else owned.mode
    if layout == TreeMaskMode.QLEN_ONLY:
        mask = tail.flatten()
    elif layout == TreeMaskMode.FULL_MASK:
        width = tail.shape[1]
        rows = [
            torch.cat((one.new_ones(width, length), one), dim=1).flatten()
            for one, length in zip(tail, lengths.tolist(), strict=True)
        ]
        mask = torch.cat(rows)
    else:
        raise NotImplementedError(f"the attention backend wants its tree mask as {layout.name}")
    if owned is not None and owned.fits(len(tail)):
        buffer: Tensor = owned.buffer
        buffer[: len(mask)].copy_(mask)
        return buffer
    return mask


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


def accepted_sources(trees: Sequence[DraftTree], paths: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
    """Sources of the accepted nodes of every request.

    Args:
        trees: one per request.
        paths: `int64[B, D]`, accepted nodes within the request, the root first; negative entries are padding.
    """
    return [tree.source[path[path > 0] - 1] for tree, path in zip(trees, paths, strict=True)]
