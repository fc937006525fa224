"""What this machine can do: processor, memory, and the bandwidth that bounds every decoding step."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import psutil

from agentspec.kernels import _native

BANDWIDTH_BUFFER_BYTES = 256 * 2**20
"""Larger than any cache, small enough to read a few times in a tenth of a second."""


def processor_name() -> str:
    """The processor's own name, or the architecture where it has none."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    """Cores that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no affinity
        return os.cpu_count() or 1


def available_memory() -> int:
    """Bytes that can still be allocated, a container's limit respected."""
    available: int = psutil.virtual_memory().available
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return available
    return available if limit == "max" else max(0, min(available, int(limit) - used))


def read_bandwidth(threads: int, passes: int = 5) -> float:
    """Bytes per second that `threads` cores read from memory together, best of `passes`.

    A plain decoding step reads every weight once, so the bytes of the weights over this are its floor.
    """
    return _native.read_bandwidth(BANDWIDTH_BUFFER_BYTES, threads, passes)
