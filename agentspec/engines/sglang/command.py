"""The command line and environment that settings stand for."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentspec.engines.sglang.cpu_backend import NAME as CPU_BACKEND
from agentspec.engines.sglang.platform import CPU_ENGINE_VARIABLE

if TYPE_CHECKING:
    from agentspec.config import Settings

ALGORITHM = "AGENTSPEC"
PARENT_VARIABLE = "AGENTSPEC_PARENT_PID"
"""Names the process with which a started server ends."""

_NVIDIA_DEVICE = Path("/dev/nvidiactl")
_CPU_TOKENS = 32_768
"""KV slots on a CPU when nothing else is said."""


def device_of(settings: Settings) -> str:
    """`cpu` or `cuda`: what the settings say, or what this machine has."""
    if settings.engine.device != "auto":
        return settings.engine.device
    return "cuda" if _NVIDIA_DEVICE.exists() else "cpu"


def server_command(settings: Settings, model: str, port: int) -> list[str]:
    """The command that starts SGLang on 127.0.0.1.

    Args:
        settings: all of them.
        model: folder or hub id.
        port: where it listens.
    """
    flags: dict[str, Any] = {
        "model-path": model,
        "host": "127.0.0.1",
        "port": port,
        "enable-metrics": True,
        "enable-cache-report": True,
        "skip-server-warmup": True,
        "max-running-requests": settings.engine.max_running,
        "max-queued-requests": settings.engine.max_waiting,
        "context-length": settings.engine.context_length,
        "served-model-name": settings.engine.served_name,
        "max-total-tokens": settings.engine.kv_tokens,
        "enable-deterministic-inference": settings.sglang.deterministic or None,
        "tp-size": settings.sglang.tensor_parallel if settings.sglang.tensor_parallel > 1 else None,
    }
    if settings.sglang.deterministic:
        flags["prefill-max-requests"] = 1  # first tokens are sampled by SGLang, in one way for all of a prefill
    if settings.engine.dtype != "auto":
        flags["dtype"] = settings.engine.dtype
    if settings.engine.speculation:
        flags["speculative-algorithm"] = ALGORITHM
        flags["speculative-draft-model-path"] = settings.sglang.draft_model
    if device_of(settings) == "cpu":
        flags |= _cpu_flags(settings)
    flags |= settings.sglang.arguments
    python = str(settings.sglang.python or sys.executable)
    return [python, "-m", "sglang.launch_server", *_spell(flags)]


def _cpu_flags(settings: Settings) -> dict[str, Any]:
    return {
        "device": "cpu",
        "dtype": "float32" if settings.engine.dtype == "auto" else settings.engine.dtype,
        "attention-backend": CPU_BACKEND,
        "cuda-graph-backend-decode": "disabled",
        "cuda-graph-backend-prefill": "disabled",
        "max-total-tokens": settings.engine.kv_tokens or _CPU_TOKENS,
    }


def _spell(flags: dict[str, Any]) -> list[str]:
    words = []
    for name, value in flags.items():
        if value is None or value is False:
            continue
        words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return words


def server_environment(settings: Settings) -> dict[str, str]:
    """The environment of the server: ours, and the settings that its plugin reads."""
    environment = dict(os.environ)
    for section in ("sglang", "drafting", "index"):
        for name, value in getattr(settings, section).model_dump(mode="json").items():
            if value is not None:
                text = value if isinstance(value, str) else json.dumps(value)
                environment[f"AGENTSPEC_{section}__{name}".upper()] = text
    environment |= {
        PARENT_VARIABLE: str(os.getpid()),
        "AGENTSPEC_CACHE_DIRECTORY": str(settings.cache_directory),
        "SGLANG_RETURN_ORIGINAL_LOGPROB": "1",
    }
    if device_of(settings) == "cpu":
        environment |= {
            CPU_ENGINE_VARIABLE: "1",
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": str(settings.engine.threads or 1),
            "TORCHDYNAMO_DISABLE": "1",  # compiling small functions would take the first request a minute
        }
    return environment
