"""Drafting with an EAGLE-3 head: its own keys and values, and a tree grown by path probability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it

from agentspec.drafters.tree import ROOT, DraftTree, Source

if TYPE_CHECKING:
    from torch import Tensor

    from agentspec.drafters.eagle3.head import Eagle3Head

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
        level_gain: expected accepted tokens that one more level must promise, where the caller does not say.
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


class _Memory:
    """Keys and values of the head, `[kv_heads, slots, head_dim]`; the oldest are forgotten when it is full."""

    def __init__(self, heads: int, slots: int, width: int, like: Tensor) -> None:
        self.keys = like.new_zeros(heads, slots, width)
        self.values = like.new_zeros(heads, slots, width)
        self.length = 0

    def make_room(self, rows: int) -> None:
        """Keep `WINDOW` slots at most when `rows` more would not fit."""
        if self.length + rows <= self.keys.shape[1]:
            return
        kept = slice(self.length - WINDOW, self.length)
        self.keys[:, :WINDOW] = self.keys[:, kept].clone()
        self.values[:, :WINDOW] = self.values[:, kept].clone()
        self.length = WINDOW

    def write(self, slot: int, keys: Tensor, values: Tensor) -> None:
        """Store `[q, kv_heads, head_dim]` from `slot` on."""
        self.keys[:, slot : slot + len(keys)] = keys.transpose(0, 1)
        self.values[:, slot : slot + len(keys)] = values.transpose(0, 1)


class Eagle3Session:
    """The head's state of one text. Not thread-safe.

    `read` follows the target: for every token that the target has read, its captured streams and the token that came
    after it. `draft` proposes what follows the last of these.

    Args:
        head: the head.
        embedding: `[V, hidden]`, the target's, in the head's type.
        growth: bounds of the trees.
    """

    def __init__(self, head: Eagle3Head, embedding: Tensor, growth: Growth) -> None:
        config = head.config
        self._head = head
        self._embedding = embedding
        self._growth = growth
        slots = 2 * WINDOW + growth.slots
        self._memory = _Memory(config.kv_heads, slots, config.head_dim, head.fc.weight)
        self._position = 0
        self._last: tuple[Tensor, Tensor] | None = None

    @torch.inference_mode()
    def read(self, features: Tensor, following: Tensor, skipped: int = 0) -> None:
        """Take in tokens that the target has read.

        Args:
            features: `[q, 3 * hidden]`, the target's streams at these tokens.
            following: `int64[q]`, the token after each of them.
            skipped: tokens before them whose streams are not known (a reused prefix); the head goes without.
        """
        self._position += skipped
        drop = max(0, len(following) - WINDOW)
        self._position += drop
        features, following = features[drop:], following[drop:]
        rows = len(following)
        self._memory.make_room(rows + self._growth.slots)
        device, start = self._embedding.device, self._memory.length
        positions = torch.arange(self._position, self._position + rows, device=device)
        visible = torch.ones(rows, start + rows, dtype=torch.bool, device=device).tril(start)
        fused = self._head.fuse(features.to(self._embedding))
        stream = self._pass(fused, following.to(device), positions, start, visible)
        self._memory.length += rows
        self._position += rows
        last = stream[-1:]
        self._last = last, self._head.logits(last)

    @torch.inference_mode()
    def draft(self, level_gain: float | None = None) -> DraftTree:
        """The head's tree after the last token read; empty before the first `read`.

        Args:
            level_gain: accepted tokens that one more level must promise: the time of a pass of the head in steps of
                the target; None: `Growth.level_gain`.
        """
        gain = self._growth.level_gain if level_gain is None else level_gain
        tree = _GrowingTree(self._growth)
        if self._last is None:
            return tree.finish()
        growth, base = self._growth, self._memory.length
        stream, logits = self._last
        expanded = [ROOT]
        # Node number `width * level + i` of the expanded ones has the slot `base + width * level + i`.
        slot_of: dict[int, int] = {}
        device = self._embedding.device
        visible = torch.zeros(growth.slots, base + growth.slots, dtype=torch.bool, device=device)
        visible[:, :base] = True
        for level in range(growth.depth):
            top = logits.float().softmax(-1).topk(min(growth.children, logits.shape[-1]))
            ids = self._head.draft_to_target[top.indices]
            nodes = tree.add_level(expanded, ids.tolist(), top.values.tolist())
            if level + 1 == growth.depth or not nodes or tree.promise(nodes) < gain:
                break
            rows = [expanded.index(tree.parents[node]) for node in nodes]
            start = growth.width * level
            for own, node in enumerate(nodes, start):
                if level:
                    visible[own] |= visible[slot_of[tree.parents[node]]]
                visible[own, base + own] = True
                slot_of[node] = own
            following = torch.tensor([tree.tokens[node] for node in nodes], device=device)
            stop = start + len(nodes)
            stream = self._pass(
                stream[rows],
                following,
                torch.full_like(following, self._position + level),
                base + start,
                visible[start:stop, : base + stop],
            )
            logits = self._head.logits(stream)
            expanded = nodes
        return tree.finish()

    def _pass(self, stream: Tensor, following: Tensor, positions: Tensor, slot: int, visible: Tensor) -> Tensor:
        """Run rows through the layer, writing their keys and values from `slot` on; the outgoing streams."""
        memory = self._memory
        queries, keys, values = self._head.project(self._embedding[following], stream, positions)
        memory.write(slot, keys, values)
        stop = slot + len(following)
        config = self._head.config
        # Query heads that share a key head become further rows, so that keys are not repeated.
        count, group, width = len(following), config.heads // config.kv_heads, config.head_dim
        rows = queries.view(count, -1, group, width).permute(1, 2, 0, 3).reshape(-1, group * count, width)
        attended = F.scaled_dot_product_attention(
            rows[None], memory.keys[None, :, :stop], memory.values[None, :, :stop],
            attn_mask=visible.repeat(group, 1)[None, None],
        )[0]  # fmt: skip
        attended = attended.view(-1, group, count, width).permute(2, 0, 1, 3).flatten(1)
        return self._head.merge(attended, stream)
