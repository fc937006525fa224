"""Whether the kernels of the device path compute here what they should: tried once, before anything relies on them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch

from agentspec.drafters.tree import DraftTree, Source
from agentspec.engines.sglang.device_path import merge, parent_rows, walk
from agentspec.engines.sglang.eagle_trees import EagleNodes
from agentspec.kernels.triton.compaction import PathCompaction, compact_rows

_VOCABULARY = 5000
"""Enough for more than one block of logits."""


def trial(device: str) -> str | None:
    """Accept, merge and compact one small step whose outcome is known.

    Returns:
        What went wrong; None when nothing did.
    """
    try:
        for name, passed in (
            ("acceptance", _accepts(device)),
            ("merging", _merges(device)),
            ("compaction", _moves(device)),
        ):
            if not passed:
                return f"{name} gave a wrong result"
    except Exception as error:  # a compiler or a driver that fails is a reason like any other
        return f"{type(error).__name__}: {error}"
    return None


def _tree(tokens: list[int], parents: list[int], probabilities: list[float]) -> DraftTree:
    return DraftTree(
        np.array(tokens, np.int32),
        np.array(parents, np.int32),
        np.array(probabilities, np.float32),
        np.full(len(tokens), Source.REQUEST, np.uint8),
    )


def _accepts(device: str) -> bool:
    """A tree in which the second branch is right, and an empty one."""
    trees = [_tree([7, 8, 9], [-1, -1, 1], [0.5] * 3), DraftTree.empty()]
    drawn = torch.tensor([[8, 1, 9, 4999], [3, 0, 0, 0]], device=device)
    logits = torch.nn.functional.one_hot(drawn.flatten(), _VOCABULARY).float()
    step = SimpleNamespace(
        parents=torch.from_numpy(parent_rows(trees, 4)).to(device),
        draft_token=torch.tensor([2, 7, 8, 9, 2, 0, 0, 0], device=device),
        positions=torch.zeros(8, dtype=torch.int64, device=device),
    )
    expected = ([8, 0, 9, 4999, 3, 0, 0, 0], [3, 1], [[0, 2, 3, -1], [4, -1, -1, -1]])
    return all(tuple(one.tolist() for one in walk(tokens, logits, step)) == expected for tokens in (None, drawn))


def _merges(device: str) -> bool:
    """Two trees that share a node; the least likely node does not fit."""
    eagle = EagleNodes(
        torch.tensor([[7, 5]], dtype=torch.int32, device=device),
        torch.tensor([[-1, 0]], dtype=torch.int32, device=device),
        torch.tensor([[0.8, 0.4]], device=device),
    )
    roots, lengths = torch.tensor([3], device=device), torch.tensor([10], device=device)
    merged = merge([_tree([7, 6], [-1, -1], [0.9, 0.1])], eagle, roots, lengths, 3)
    rows = merged.rows
    return (
        rows.tokens.tolist() == [[3, 7, 5]]
        and rows.parents is not None
        and rows.parents.tolist() == [[-1, 0, 1]]
        and rows.positions.tolist() == [[10, 11, 12]]
        and rows.mask.tolist() == [[[True, False, False], [True, True, False], [True, True, True]]]
        and [one.tolist() for one in merged.sources()] == [[Source.REQUEST, Source.EAGLE3]]
    )


def _moves(device: str) -> bool:
    cache = torch.arange(12.0, device=device).view(6, 2)
    rows = cache.clone()
    path = torch.tensor([[0, 2, -1]], dtype=torch.int32, device=device)
    counts = torch.tensor([2], dtype=torch.int32, device=device)
    slots = torch.tensor([[5, 1, 3]], device=device)
    PathCompaction([cache])(slots, path, counts, through_batch=True)
    compact_rows(rows, path, counts)
    return bool(cache[1].tolist() == [6.0, 7.0] and rows[:3].tolist() == [[0.0, 1.0], [4.0, 5.0], [4.0, 5.0]])
