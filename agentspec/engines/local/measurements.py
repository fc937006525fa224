"""Measurements of this machine, made once and remembered in the user's cache."""

from __future__ import annotations

import json
import os
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from agentspec.engines.local.hardware import processor_name, usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FORMAT = 3
"""Raised when the meaning of a measurement changes, or the speed of what is measured: older ones are made again."""


def remembered(cache_directory: Path, subject: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `measure` returned on this machine, now or earlier.

    A measurement made while other work kept the cores busy is used but not kept.

    Args:
        cache_directory: `Settings.cache_directory`; measurements go to `measurements/` in it.
        subject: names what is measured and all that it depends on besides the machine.
        measure: makes a dictionary that JSON can hold.
    """
    key = json.dumps([FORMAT, processor_name(), usable_cores(), subject])
    file = cache_directory / "measurements" / f"{sha256(key.encode()).hexdigest()[:24]}.json"
    try:
        stored: dict[str, Any] = json.loads(file.read_text())
        if stored.pop("subject") == key:
            return stored
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass  # not measured yet, or not readable: measure again
    busy = os.getloadavg()[0] > usable_cores()
    measured = measure()
    if not busy:
        _keep(file, measured | {"subject": key})
    return measured


def _keep(file: Path, content: dict[str, Any]) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh = file.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(content))
        fresh.replace(file)
    except OSError:
        pass  # a read-only or full disk costs a second at the next start, nothing else
