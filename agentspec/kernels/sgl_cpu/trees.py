"""Draft trees in SGLang's layout: node 0 is the last committed token, node i a drafted one.

All outputs are in place. n is the number of nodes per request, the root included; links hold -1 for "none".
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


class MaskLayout(IntEnum):
    """How SGLang wants the tree mask laid out; the values are SGLang's."""

    FULL = 0
    """`[n, prefix + n]` per request, one after the other."""
    TAIL = 1
    """`[n, n]` per request: only the drafted columns."""


def parents_of(selected: list[int], parent_list: list[int], topk: int) -> list[int]:
    """Parent of every node from EAGLE's beam bookkeeping; -1 for the root and for orphans.

    Args:
        selected: `[n - 1]`, for every drafted node its place in the flat list of beam candidates; `place // topk` is
            the beam entry that it extends, 0 being the root.
        parent_list: the candidate that each beam entry was.
        topk: candidates per beam entry.
    """
    node_of: dict[int, int] = {}
    for node, place in enumerate(selected, start=1):
        node_of.setdefault(place, node)
    beams = (place // topk for place in selected)
    return [-1, *(0 if beam == 0 else node_of.get(parent_list[beam], -1) for beam in beams)]


def links_of(parents: list[int]) -> tuple[list[int], list[int]]:
    """First child and next sibling of every node, children in ascending order."""
    first_child, next_sibling = [-1] * len(parents), [-1] * len(parents)
    for node in range(len(parents) - 1, 0, -1):
        parent = parents[node]
        if parent >= 0:
            next_sibling[node] = first_child[parent]
            first_child[parent] = node
    return first_child, next_sibling


def _masks_and_depths(parents: list[int], max_depth: int) -> tuple[Tensor, list[int]]:
    """Ancestor mask `bool[n, n]` (the root is everyone's ancestor) and depth of every node."""
    mask = torch.zeros(len(parents), len(parents), dtype=torch.bool)
    mask[:, 0] = True
    depths = [0] * len(parents)
    for node in range(1, len(parents)):
        ancestor = node
        while ancestor > 0 and depths[node] < max_depth:
            mask[node, ancestor] = True
            depths[node] += 1
            ancestor = parents[ancestor]
    return mask, depths


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,
    selected_index: Tensor,
    seq_lens: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Turn the beam bookkeeping of EAGLE's draft into mask, positions and links.

    Args:
        parent_list: `[B, *]`, see `parents_of`.
        selected_index: `[B, n - 1]`, ascending, see `parents_of`.
        seq_lens: `[B]`, committed tokens before the root.
        tree_mask: out, `bool`, flat; its layout is `tree_mask_mode`.
        positions: out, `int64[B * n]`, absolute positions.
        retrieve_index: out, `int64[B, n]`, flat node numbers.
        retrieve_next_token: out, `int64[B, n]`, first children.
        retrieve_next_sibling: out, `int64[B, n]`.
        topk: candidates per beam entry.
        depth: most tokens on one path.
        draft_token_num: n.
        tree_mask_mode: a `MaskLayout`.
    """
    n, layout = int(draft_token_num), MaskLayout(int(tree_mask_mode))
    retrieve_index.copy_(torch.arange(retrieve_index.numel()).view(retrieve_index.shape))
    offset = 0
    for b, prefix in enumerate(seq_lens.tolist()):
        parents = parents_of(selected_index[b].tolist()[: n - 1], parent_list[b].tolist(), int(topk))
        first_child, next_sibling = links_of(parents)
        mask, depths = _masks_and_depths(parents, int(depth))
        retrieve_next_token[b] = torch.tensor(first_child)
        retrieve_next_sibling[b] = torch.tensor(next_sibling)
        positions[b * n : (b + 1) * n] = prefix + torch.tensor(depths)
        width = n + (prefix if layout is MaskLayout.FULL else 0)
        tree_mask[offset : offset + n * width].view(n, width)[:, width - n :] = mask
        offset += n * width


def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Walk every tree along the target's own tokens.

    Args:
        predicts: out, `int32[B * n]`, the target's token at every node of the accepted path.
        accept_index: out, `int32[B, D]`, flat numbers of the accepted path's nodes, the root first.
        accept_token_num: out, `int32[B]`, accepted drafted nodes.
        candidates: `int64[B, n]`, token of every node.
        retrive_index: `int64[B, n]`, flat node numbers.
        retrive_next_token: `int64[B, n]`, first children.
        retrive_next_sibling: `int64[B, n]`.
        target_predict: `int64[B, n]`, the token that the target draws after every node.
    """
    tokens, wanted = candidates.tolist(), target_predict.reshape(candidates.shape).tolist()
    numbers, children, siblings = retrive_index.tolist(), retrive_next_token.tolist(), retrive_next_sibling.tolist()
    most = accept_index.shape[1]
    for b in range(len(tokens)):
        path = [0]
        while len(path) < most:
            node = children[b][path[-1]]
            while node != -1 and tokens[b][node] != wanted[b][path[-1]]:
                node = siblings[b][node]
            if node == -1:
                break
            path.append(node)
        flat = torch.tensor([numbers[b][node] for node in path])
        predicts[flat] = torch.tensor([wanted[b][node] for node in path], dtype=predicts.dtype)
        accept_index[b, : len(path)] = flat.to(accept_index.dtype)
        accept_token_num[b] = len(path) - 1


def reconstruct_indices_from_tree_mask(
    tree_mask: Tensor,
    seq_lens: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Positions and links of trees that are given by their ancestor masks alone.

    Args:
        tree_mask: `bool`, flat `[B, n, n]`: entry (i, j) marks j as an ancestor of i; only j < i counts.
        seq_lens: `[B]`, committed tokens before the root.
        positions: out, `int64[B * n]`.
        retrieve_index: out, `int64[B, n]`.
        retrieve_next_token: out, `int64[B, n]`, first children.
        retrieve_next_sibling: out, `int64[B, n]`; roots have none.
        batch_size: B.
        draft_token_num: n.
    """
    bs, n = int(batch_size), int(draft_token_num)
    ancestors = tree_mask.flatten()[: bs * n * n].view(bs, n, n).bool().tril(-1)
    order = torch.arange(n)
    positions.copy_((ancestors.sum(-1) + seq_lens.view(bs, 1)).flatten())
    retrieve_index.copy_(torch.arange(bs * n).view(bs, n))
    parents = torch.where(ancestors, order, -1).amax(-1)
    for b, row in enumerate(parents.tolist()):
        first_child, next_sibling = links_of(row)
        retrieve_next_token[b] = torch.tensor(first_child)
        retrieve_next_sibling[b] = torch.tensor(next_sibling)
