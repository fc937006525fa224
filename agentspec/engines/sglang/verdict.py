"""A verify step whose outcome may still be on the device, and what is learnt from it once it is in."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from agentspec.drafters.tree import Source
from agentspec.engines.sglang.drafts import Round

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from agentspec.engines.sglang.cost import VerifyCost
    from agentspec.engines.sglang.drafts import ActiveRequest, DraftBook
    from agentspec.engines.sglang.eagle_value import EagleValue


class Stopwatch:
    """Time of what is queued on a device between two moments; on a CPU the time itself.

    Args:
        device: `cpu` or a CUDA device.
    """

    def __init__(self, device: str) -> None:
        self._cuda = torch.device(device).type == "cuda"
        self._began = perf_counter()
        self._start = self._end = self._mark()

    def stop(self) -> None:
        """The end of what is timed."""
        self._end = self._mark()

    def seconds(self) -> float:
        """Between the two; waits for the device."""
        if not self._cuda:
            return float(self._end - self._start)
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) * 1e-3

    @property
    def began(self) -> float:
        """When the host queued the start, of `perf_counter`."""
        return self._began

    def _mark(self) -> Any:
        if not self._cuda:
            return perf_counter()
        event: Any = torch.cuda.Event
        mark = event(enable_timing=True)
        mark.record()
        return mark


@dataclass(slots=True)
class Verdict:
    """One verify step.

    Attributes:
        active: its requests.
        sources: gives, for each of them, the source of every drafted node; may wait for the device.
        tokens: `int32[B * W]` on the device, what was generated at the front of each request's part.
        counts: `int32[B]` on the device, how many.
        accepted: `int32[B, W]` on the device, accepted rows counted through the batch, -1 where there are fewer.
        width: W.
        eagle_skipped: whether EAGLE-3 did not draft because the batch was confident without it.
        eagle: times the EAGLE-3 draft that the device was left to itself with; None where there was none.
        draft_seconds: of the host, per request.
        started: when the target's step began, of `perf_counter`.
    """

    active: list[ActiveRequest]
    sources: Callable[[], list[NDArray[np.uint8]]]
    tokens: torch.Tensor
    counts: torch.Tensor
    accepted: torch.Tensor
    width: int
    eagle_skipped: bool
    eagle: Stopwatch | None
    draft_seconds: float
    started: float

    def settle(self, book: DraftBook, cost: VerifyCost, eagle_value: EagleValue) -> None:
        """Wait for the outcome, and let drafts, receipts and estimates follow it."""
        counts = self.counts.tolist()
        tokens = self.tokens.view(-1, self.width).tolist()
        paths = self.accepted.cpu().numpy().astype(np.int64)
        seconds = self._verify_seconds(eagle_value)
        base = np.arange(len(paths)).reshape(-1, 1) * self.width
        drafted = self.sources()
        accepted = accepted_sources(drafted, np.where(paths < 0, -1, paths - base))
        for active, nodes, path, new, count in zip(self.active, drafted, accepted, tokens, counts, strict=True):
            active.rounds.append(Round(nodes, path, self.eagle_skipped, self.draft_seconds, seconds))
            book.commit(active, new[:count])
        cost.observe(self.width * len(counts), seconds)
        eagle_value.verified(
            seconds + self.draft_seconds * len(counts),
            sum(counts) / len(counts),
            [] if self.eagle_skipped else [int((path == Source.EAGLE3).sum()) for path in accepted],
        )

    def _verify_seconds(self, eagle_value: EagleValue) -> float:
        """Time of the target's step; a draft that ran before it without the host waiting is taken off."""
        now = perf_counter()
        if self.eagle is None:
            return now - self.started
        drafting = self.eagle.seconds()
        eagle_value.drafted(drafting)
        return now - max(self.started, self.eagle.began + drafting)


def accepted_sources(sources: Sequence[NDArray[np.uint8]], paths: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
    """Sources of the accepted nodes of every request.

    Args:
        sources: per request, of its drafted nodes in the order of rows.
        paths: `int64[B, D]`, accepted rows within the request, the root first; negative entries are padding.
    """
    return [drafted[path[path > 0] - 1] for drafted, path in zip(sources, paths, strict=True)]
