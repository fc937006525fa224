"""Timing on a GPU, or on a CPU to try a measurement out."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

REPETITIONS = 15
FLUSH_BYTES = 256 << 20
"""More than any level-2 cache holds."""
FLUSHES = 4
"""Together some 250 microseconds on the fastest of GPUs, more than the host needs to queue what is timed."""
COPY_BYTES = 2 << 30


class Timer:
    """Median microseconds of a function.

    On a GPU the level-2 cache is overwritten before every run; the host queues the run meanwhile, so its own time
    does not count unless it waits for the device. In a server the runs lie in CUDA graphs, where it does not either.

    Args:
        device: `cuda` or `cpu`.
        repetitions: runs that are timed, after one that is not.
    """

    def __init__(self, device: str, repetitions: int = REPETITIONS) -> None:
        self._cuda = device != "cpu"
        self._repetitions = repetitions
        self._flush = torch.empty(FLUSH_BYTES if self._cuda else 1, dtype=torch.uint8, device=device)

    def microseconds(self, run: Callable[[], object]) -> float:
        """Time `run`."""
        run()
        once = self._on_device if self._cuda else self._on_host
        return statistics.median(once(run) for _ in range(self._repetitions))

    def _on_device(self, run: Callable[[], object]) -> float:
        event: Any = torch.cuda.Event
        start, stop = event(enable_timing=True), event(enable_timing=True)
        for _ in range(FLUSHES):
            self._flush.zero_()
        start.record()
        run()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) * 1e3

    def _on_host(self, run: Callable[[], object]) -> float:
        start = time.perf_counter()
        run()
        return (time.perf_counter() - start) * 1e6


def copy_bandwidth(device: str, timer: Timer, size: int = COPY_BYTES) -> float:
    """Bytes read and written per second by a large copy: what attention can hope for."""
    source = torch.empty(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / (timer.microseconds(lambda: target.copy_(source)) * 1e-6)
