"""A server that agentspec started must not outlive it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from agentspec.engines.sglang.command import PARENT_VARIABLE

_SET_PARENT_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


def end_with_parent() -> None:
    """Have the kernel end this process when the one that started it dies; SGLang's own children follow it.

    Only Linux can do so; elsewhere, and when somebody else started the server, nothing happens.
    """
    if sys.platform == "linux" and os.environ.get(PARENT_VARIABLE) == str(os.getppid()):
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
