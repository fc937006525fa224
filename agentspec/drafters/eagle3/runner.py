"""Running tokens of one text through a head, with the keys and values that it keeps of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it

if TYPE_CHECKING:
    from torch import Tensor

    from agentspec.drafters.eagle3.head import Eagle3Head

SLOT_MULTIPLE = 16
"""Memories are forgotten in blocks of so many slots, as the native kernels store keys."""


@dataclass(frozen=True, slots=True)
class Behind:
    """What the rows of a pass see of the slots behind the committed ones.

    Attributes:
        last_only: only the last row's results are wanted.
        mask: `bool[q, drafted + q]` on the CPU, the slots that each row sees, itself among them; None: causal, and
            nothing is drafted.
    """

    last_only: bool
    mask: Tensor | None = None

    def drafted(self, rows: int) -> int:
        """Slots that hold earlier nodes of the draft, for a pass of `rows`."""
        return 0 if self.mask is None else self.mask.shape[1] - rows


class HeadRunner(ABC):
    """A head and what it remembers of one text: `length` committed slots and, behind them, nodes of a draft.

    Streams are `[q, hidden]`, in whatever type the runner computes; callers only hand them back. Not thread-safe.

    Args:
        draft_to_target: `int64[D]`, the target's id of every draft token.
        slots: most slots, a multiple of `SLOT_MULTIPLE`.

    Attributes:
        length: committed slots.
    """

    def __init__(self, draft_to_target: Tensor, slots: int) -> None:
        self.length = 0
        self._draft_to_target = draft_to_target
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
    def fuse(self, features: Tensor) -> Tensor:
        """Streams from the target's captured ones, `[q, 3 * hidden]`."""

    @abstractmethod
    def run(self, stream: Tensor, following: Tensor, positions: Tensor, behind: Behind) -> tuple[Tensor, Tensor]:
        """Run rows; their keys and values go to the slots behind what is committed and drafted.

        Args:
            stream: of the rows.
            following: `int64[q]` on the CPU, the token after each of them.
            positions: `int64[q]` on the CPU.
            behind: what they see behind the committed slots, and which of them are wanted.

        Returns:
            Of the rows wanted, the outgoing streams and the logits over the draft vocabulary, `[r, D]`.
        """

    def likeliest(self, logits: Tensor, count: int) -> tuple[list[list[int]], list[list[float]]]:
        """The `count` likeliest next tokens of each row, best first: the target's ids, and their probabilities."""
        logits = logits.float()
        top = logits.topk(min(count, logits.shape[-1]))
        probs = (top.values - logits.logsumexp(-1, keepdim=True)).exp()
        return self._draft_to_target[top.indices].tolist(), probs.tolist()


class TorchRunner(HeadRunner):
    """Any head on any device.

    Args:
        head: the head.
        embedding: `[V, hidden]`, the target's, in the head's type.
        slots: see `HeadRunner`.
    """

    def __init__(self, head: Eagle3Head, embedding: Tensor, slots: int) -> None:
        super().__init__(head.draft_to_target, slots)
        config = head.config
        self._head = head
        self._embedding = embedding
        self._keys = embedding.new_zeros(config.kv_heads, slots, config.head_dim)
        self._values = embedding.new_zeros(config.kv_heads, slots, config.head_dim)

    def _shift(self, dropped: int) -> None:
        for memory in (self._keys, self._values):
            memory[:, : self.length - dropped] = memory[:, dropped : self.length].clone()

    def fuse(self, features: Tensor) -> Tensor:
        """See `HeadRunner.fuse`."""
        return self._head.fuse(features.to(self._embedding))

    def run(self, stream: Tensor, following: Tensor, positions: Tensor, behind: Behind) -> tuple[Tensor, Tensor]:
        """See `HeadRunner.run`."""
        device = self._embedding.device
        count, config = len(following), self._head.config
        queries, keys, values = self._head.project(self._embedding[following.to(device)], stream, positions.to(device))
        start = self.length + behind.drafted(count)
        stop = start + count
        self._keys[:, start:stop] = keys.transpose(0, 1)
        self._values[:, start:stop] = values.transpose(0, 1)
        tail = torch.ones(count, count, dtype=torch.bool).tril() if behind.mask is None else behind.mask
        mask = F.pad(tail, (self.length, 0), value=True).to(device)
        # Query heads that share a key head become further rows, so that keys are not repeated.
        group, width = config.heads // config.kv_heads, config.head_dim
        rows = queries.view(count, -1, group, width).permute(1, 2, 0, 3).reshape(-1, group * count, width)
        attended = F.scaled_dot_product_attention(
            rows[None], self._keys[None, :, :stop], self._values[None, :, :stop],
            attn_mask=mask.repeat(group, 1)[None, None],
        )[0]  # fmt: skip
        attended = attended.view(-1, group, count, width).permute(2, 0, 1, 3).flatten(1)
        wanted = slice(-1 if behind.last_only else 0, None)
        outgoing = self._head.merge(attended[wanted], stream[wanted])
        return outgoing, self._head.logits(outgoing)
