"""General plugin entry point: SGLang calls `register` in every one of its processes."""

from __future__ import annotations

import logging

from agentspec.engines.sglang import cpu_backend
from agentspec.engines.sglang.platform import cpu_engine_requested

logger = logging.getLogger(__name__)


def register() -> None:
    """Register the algorithm AGENTSPEC, its hooks, and the CPU attention backend where that engine is asked for."""
    if cpu_engine_requested():
        cpu_backend.register()
