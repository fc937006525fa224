"""What the operating system says of this machine."""

from __future__ import annotations

import platform
from pathlib import Path


def cpu_name() -> str:
    """The processor's name as it calls itself."""
    names = _cpu_facts("model name")
    return names[0] if names else platform.processor() or platform.machine()


def cpu_flags() -> frozenset[str]:
    """Instruction set extensions, as Linux spells them; empty elsewhere."""
    return frozenset(flag for line in _cpu_facts("flags", "Features") for flag in line.split())


def _cpu_facts(*names: str) -> list[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    facts = (line.partition(":") for line in lines)
    return [value.strip() for name, _, value in facts if name.strip() in names]
