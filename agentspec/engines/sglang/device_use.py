"""What of a verify step is left to the device (`device_path`), and what goes by the host."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentspec.drafters.base import Budget
    from agentspec.engines.sglang.device_path import DeviceCompaction

logger = logging.getLogger(__name__)


class DeviceUse:
    """Decides for one worker.

    Args:
        mode: `sglang.device_verify`.
        device: of the target.

    Attributes:
        accepts: whether drawn tokens are followed on the device.
    """

    def __init__(self, mode: str, device: str) -> None:
        self.accepts = mode == "on" or (mode == "auto" and torch.device(device).type == "cuda")
        self._compaction: DeviceCompaction | None = None
        self._pool: Any = None
        if self.accepts:
            from agentspec.engines.sglang.device_trial import trial

            problem = trial(device)
            if problem is not None:
                self.accepts = False
                logger.warning("agentspec: trees go by the host, since the device's kernels fail here: %s", problem)

    def compaction(self, pool: Any) -> DeviceCompaction | None:
        """What compacts the target's cache after a step; None leaves it to SGLang.

        Args:
            pool: SGLang's cache of the target. Asked for when the first step runs: its memory has its place by then.
        """
        if not self.accepts:
            return None
        if pool is not self._pool:
            from agentspec.engines.sglang.device_path import DeviceCompaction, can_compact

            self._pool = pool
            self._compaction = DeviceCompaction(pool) if can_compact(pool) else None
        return self._compaction

    def merges(self, batch: Any, budgets: Sequence[Budget], steps: int, *, alone: bool) -> bool:
        """Whether a batch's EAGLE-3 trees may stay on the device.

        What needs the finished trees on the host before the target runs keeps the whole batch there: a grammar, which
        walks them, and penalties, which are counted along their paths. So do requests that may not speculate, or not
        as deep as EAGLE-3 drafts, and tensor parallelism, where all ranks must verify the first one's trees.

        Args:
            batch: the scheduler's.
            budgets: of its requests.
            steps: depth of the EAGLE-3 draft.
            alone: whether the target runs on one GPU.
        """
        from agentspec.engines.sglang.penalties import PenaltyRule

        return (
            self.accepts
            and alone
            and not batch.has_grammar
            and all(budget.max_nodes > 0 and budget.max_depth >= steps for budget in budgets)
            and all(PenaltyRule.of(request) is None for request in batch.reqs)
        )
