"""Merging draft trees on the device.

EAGLE-3's tree is made on the device and suffix trees on the host. Merged on the host, EAGLE-3's tree has to be waited
for; merged here, the host only sends its own nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from agentspec.kernels.ancestor_bits import words_for
from agentspec.kernels.triton.accept import NO_PARENT

_NODES = 64
"""Nodes of a request that one compiled form takes, at least: fewer forms, fewer pauses to compile."""


@dataclass(frozen=True, slots=True)
class DeviceTrees:
    """The rows of a verify step of a batch, on the device.

    Attributes:
        tokens: `int64[B, W]`, row 0 the last committed token.
        parents: `int32[B, W]`, the row above each row; -1 for row 0 and `NO_PARENT` for padding rows.
        bits: `int64[B, W, words]`, the rows that each row sees; padding rows see themselves.
        depths: `int32[B, W]`, rows between a row and row 0; 0 for padding rows.
        counts: `int32[B]`, rows that are not padding.
        origins: `int32[B, W]`, the node that each row was made from, the first of equal ones; -1 for row 0 and padding.
    """

    tokens: torch.Tensor
    parents: torch.Tensor
    bits: torch.Tensor
    depths: torch.Tensor
    counts: torch.Tensor
    origins: torch.Tensor


def merge_trees(
    roots: torch.Tensor, tokens: torch.Tensor, parents: torch.Tensor, order: torch.Tensor, width: int
) -> DeviceTrees:
    """One tree out of several per request; equal tokens under one parent become one node.

    Args:
        roots: `int64[B]`, the last committed tokens.
        tokens: `int32[B, N]`, the nodes of all trees of a request; negative tokens are padding.
        parents: `int32[B, N]`, index of each node's parent among them, -1 for children of the root.
        order: `int64[B, N]`, the nodes in order of preference, parents before their children; a node that comes before
            its parent is left out.
        width: rows of the result; nodes for which there is no room are left out with their descendants.
    """
    batch, nodes = tokens.shape
    words = words_for(width)
    device = tokens.device
    merged = DeviceTrees(
        torch.empty(batch, width, dtype=torch.int64, device=device),
        torch.empty(batch, width, dtype=torch.int32, device=device),
        torch.empty(batch, width, words, dtype=torch.int64, device=device),
        torch.empty(batch, width, dtype=torch.int32, device=device),
        torch.empty(batch, dtype=torch.int32, device=device),
        torch.empty(batch, width, dtype=torch.int32, device=device),
    )
    _merge[(batch,)](
        roots,
        tokens,
        parents,
        order,
        merged.tokens,
        merged.parents,
        merged.bits,
        merged.depths,
        merged.counts,
        merged.origins,
        nodes,
        width,
        words,
        PADDING=NO_PARENT,
        ROWS=triton.next_power_of_2(width),
        WORDS=triton.next_power_of_2(words),
        NODES=max(_NODES, triton.next_power_of_2(nodes)),
    )
    return merged


@triton.jit
def _merge(
    roots,
    tokens,
    parents,
    order,
    out_tokens,
    out_parents,
    out_bits,
    out_depths,
    out_counts,
    out_origins,
    nodes,
    width,
    words,
    PADDING: tl.constexpr,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    NODES: tl.constexpr,
):
    """One request; the tree stays in registers, and an entry is picked out of a vector by comparing indices."""
    request = tl.program_id(0)
    rows, index = tl.arange(0, ROWS), tl.arange(0, NODES)
    word = tl.arange(0, WORDS)
    held = tl.where(rows == 0, tl.load(roots + request), 0)
    above = tl.where(rows == 0, -1, PADDING)
    depth = tl.zeros([ROWS], tl.int32)
    one = tl.full([ROWS, WORDS], 1, tl.int64)
    own = tl.where(word[None, :] == rows[:, None] // 64, one << (rows % 64)[:, None].to(tl.int64), 0)
    bits = own
    origin = tl.full([ROWS], -1, tl.int32)
    place = tl.full([NODES], -1, tl.int32)  # row of every node; -1: left out
    count = tl.full((), 1, tl.int32)
    for turn in range(nodes):
        node = tl.load(order + request * nodes + turn).to(tl.int32)
        token = tl.load(tokens + request * nodes + node).to(tl.int64)
        parent = tl.load(parents + request * nodes + node)
        parent_row = tl.where(parent < 0, 0, tl.sum(tl.where(index == parent, place, 0), 0))
        match = (above == parent_row) & (held == token)
        known = tl.max(tl.where(match, rows, -1), 0)
        wanted = (token >= 0) & (parent_row >= 0)
        new = wanted & (known < 0) & (count < width)
        here = (rows == count) & new
        parent_depth = tl.sum(tl.where(rows == parent_row, depth, 0), 0)
        parent_bits = tl.sum(tl.where((rows == parent_row)[:, None], bits, 0), 0)
        held = tl.where(here, token, held)
        above = tl.where(here, parent_row, above)
        depth = tl.where(here, parent_depth + 1, depth)
        origin = tl.where(here, node, origin)
        bits = tl.where(here[:, None], own | parent_bits[None, :], bits)
        row = tl.where(wanted, tl.where(new, count, known), -1)
        place = tl.where(index == node, row, place)
        count += new.to(tl.int32)
    inside = rows < width
    tl.store(out_tokens + request * width + rows, held, mask=inside)
    tl.store(out_parents + request * width + rows, above, mask=inside)
    tl.store(out_depths + request * width + rows, depth, mask=inside)
    tl.store(out_origins + request * width + rows, origin, mask=inside)
    target = out_bits + (request * width + rows)[:, None] * words + word[None, :]
    tl.store(target, bits, mask=inside[:, None] & (word < words)[None, :])
    tl.store(out_counts + request, count)
