"""Platform entry point: the first of our code that runs in any of SGLang's processes.

SGLang evaluates it the first time anything asks for the current platform, which is before anything imports
`sgl_kernel`; the stand-ins for a machine without a GPU must be in place by then.
"""

from __future__ import annotations

import os

CPU_ENGINE_VARIABLE = "SGLANG_USE_CPU_ENGINE"
"""SGLang's own switch for its CPU engine."""


def cpu_engine_requested() -> bool:
    """Whether this process is to run SGLang's CPU engine."""
    return os.environ.get(CPU_ENGINE_VARIABLE) == "1"


def activate() -> None:
    """Install the CPU stand-ins where they are needed; returns None so that SGLang's own platform stays active."""
    if cpu_engine_requested():
        from agentspec.kernels.sgl_cpu import install

        install()
