"""Tensor parallelism: every rank must run the same trees. Runs inside SGLang only."""

from __future__ import annotations

from typing import TypeVar

import torch.distributed
from sglang.srt.runtime_context import get_parallel

_T = TypeVar("_T")


class Agreement:
    """Makes the first rank's decision everyone's.

    Drafts depend on measured times and on indexes that a rank may see a moment later than another; a rank that ran
    another width than the rest would wait for them forever.
    """

    def __init__(self) -> None:
        self._group = get_parallel().tp_group

    @property
    def alone(self) -> bool:
        """Whether there is one rank."""
        return bool(self._group.world_size == 1)

    def on(self, decision: _T) -> _T:
        """The first rank's value of `decision`; must be called by all ranks alike."""
        if self._group.world_size == 1:
            return decision
        values = [decision]
        torch.distributed.broadcast_object_list(values, src=self._group.ranks[0], group=self._group.cpu_group)
        return values[0]
