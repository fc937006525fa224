"""Running tokens of one text through a head, with the keys and values that it keeps of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from agentspec.drafters.eagle3.head import Eagle3Head
    from agentspec.kernels import _native

SLOT_MULTIPLE = 16
"""Memories are forgotten in blocks of so many slots, as the native kernels store keys."""


class HeadRunner(ABC):
    """A head and what it remembers of one text: `length` committed slots and, behind them, nodes of a draft.

    Not thread-safe.

    Args:
        slots: most slots, a multiple of `SLOT_MULTIPLE`.

    Attributes:
        length: committed slots.
    """

    def __init__(self, slots: int) -> None:
        self.length = 0
        self._slots = slots

    def make_room(self, rows: int, window: int) -> None:
        """Forget the oldest slots, but `window` and a few, when `rows` more would not fit."""
        if self.length + rows <= self._slots:
            return
        dropped = (self.length - window) // SLOT_MULTIPLE * SLOT_MULTIPLE
        self._shift(dropped)
        self.length -= dropped

    @abstractmethod
    def _shift(self, dropped: int) -> None:
        """Move the slots from `dropped` on to the front; `dropped` is a multiple of `SLOT_MULTIPLE`."""

    @abstractmethod
    def read(self, features: Tensor, following: Tensor, position: int) -> None:
        """Commit tokens; what the last of them leads to is kept for `grow`.

        Args:
            features: `[q, 3 * hidden]`, the target's captured streams at them.
            following: `int64[q]` on the CPU, the token after each of them.
            position: of the first.
        """

    @abstractmethod
    def grow(self, tree: _native.TreeGrowth, position: int) -> None:
        """Grow a tree after the last token read. Its nodes leave no trace here.

        Args:
            tree: empty.
            position: of its first level.
        """


class TorchRunner(HeadRunner):
    """Any head on any device.

    Args:
        head: the head.
        embedding: `[V, hidden]`, the target's, in the head's type.
        slots: see `HeadRunner`.
    """

    def __init__(self, head: Eagle3Head, embedding: Tensor, slots: int) -> None:
        super().__init__(slots)
        config = head.config
        self._head = head
        self._embedding = embedding
        self._keys = embedding.new_zeros(config.kv_heads, slots, config.head_dim)
        self._values = embedding.new_zeros(config.kv_heads, slots, config.head_dim)
        self._last = embedding.new_zeros(0)

    def _shift(self, dropped: int) -> None:
        for memory in (self._keys, self._values):
            memory[:, : self.length - dropped] = memory[:, dropped : self.length].clone()

    @torch.inference_mode()
    def read(self, features: Tensor, following: Tensor, position: int) -> None:
        """See `HeadRunner.read`."""
        rows = len(following)
        stream = self._head.fuse(features.to(self._embedding))
        mask = torch.ones(rows, rows, dtype=torch.bool).tril()
        self._last = self._run(stream, following, torch.arange(position, position + rows), mask, slice(-1, None))
        self.length += rows

    @torch.inference_mode()
    def grow(self, tree: _native.TreeGrowth, position: int) -> None:
        """See `HeadRunner.grow`."""
        stream = self._last
        while tree.add_level(*self._likeliest(stream, tree.children)):
            following, mask = torch.from_numpy(tree.following), torch.from_numpy(tree.mask)
            positions = torch.full_like(following, position)
            stream = self._run(stream[torch.from_numpy(tree.sources)], following, positions, mask, slice(None))
            position += 1

    def _likeliest(self, stream: Tensor, count: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The `count` likeliest next tokens of each row `[r, count]`, best first: target ids, and probabilities."""
        logits = self._head.logits(stream).float()
        top = logits.topk(min(count, logits.shape[-1]))
        probs = (top.values - logits.logsumexp(-1, keepdim=True)).exp()
        return self._head.draft_to_target[top.indices].cpu().numpy(), probs.cpu().numpy()

    def _run(self, stream: Tensor, following: Tensor, positions: Tensor, mask: Tensor, wanted: slice) -> Tensor:
        """The outgoing streams `[r, hidden]` of the rows wanted; all rows' keys and values are stored.

        Args:
            stream: `[q, hidden]`.
            following: `int64[q]`, on the CPU as the rest.
            positions: `int64[q]`.
            mask: `bool[q, drafted + q]`, which of the slots behind the committed ones each row sees.
            wanted: of the rows.
        """
        device = self._embedding.device
        count, config = len(following), self._head.config
        queries, keys, values = self._head.project(self._embedding[following.to(device)], stream, positions.to(device))
        stop = self.length + mask.shape[1]
        self._keys[:, stop - count : stop] = keys.transpose(0, 1)
        self._values[:, stop - count : stop] = values.transpose(0, 1)
        seen = F.pad(mask, (self.length, 0), value=True).to(device)
        # Query heads that share a key head become further rows, so that keys are not repeated.
        group, width = config.heads // config.kv_heads, config.head_dim
        rows = queries.view(count, -1, group, width).permute(1, 2, 0, 3).reshape(-1, group * count, width)
        attended = F.scaled_dot_product_attention(
            rows[None], self._keys[None, :, :stop], self._values[None, :, :stop],
            attn_mask=seen.repeat(group, 1)[None, None],
        )[0]  # fmt: skip
        attended = attended.view(-1, group, count, width).permute(2, 0, 1, 3).flatten(1)
        return self._head.merge(attended[wanted], stream[wanted])
