"""llama.cpp's plain decoding of the same requests, as a yardstick from outside."""

from __future__ import annotations

import json
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from agentspec.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from agentspec.benchmarking.editing import EditTask

CONTEXT = 4096


def require_llama_cpp(gguf: Path) -> None:
    """Check, before anything is measured, that llama.cpp can be.

    Raises:
        InvalidRequestError: its Python package is not installed, or there are no weights.
    """
    if find_spec("xllamacpp") is None:
        raise InvalidRequestError("llama.cpp is measured with xllamacpp; install it: pip install xllamacpp")
    if not gguf.is_file():
        raise InvalidRequestError(f"there is no file {gguf}; --gguf takes the weights that llama.cpp is to decode with")


def llama_tokens_per_second(gguf: Path, tasks: Sequence[EditTask], threads: int) -> dict[str, float]:
    """Tokens per second without prefill, by kind of edit and over "all".

    Every request is asked for one token first and then whole, with the prompt in the cache.

    Args:
        gguf: the weights.
        tasks: what to ask.
        threads: of llama.cpp.
    """
    import xllamacpp  # noqa: PLC0415 - not a dependency, see `require_llama_cpp`

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(gguf)
    parameters.n_ctx = CONTEXT
    parameters.n_parallel = 1
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(parameters)

    def complete(task: EditTask, count: int) -> tuple[int, float]:
        """Tokens and seconds."""
        request: dict[str, Any] = {
            "prompt": task.prompt,
            "n_predict": count,
            "temperature": 0,
            "cache_prompt": True,
            "stop": list(task.stop),
        }
        begin = time.perf_counter()
        answer = server.handle_completions(request)
        seconds = time.perf_counter() - begin
        return _tokens(answer), seconds

    spent: dict[str, list[float]] = {}
    for task in tasks:
        complete(task, 1)  # prefill
        tokens, seconds = complete(task, task.max_tokens)
        for kind in (task.kind, "all"):
            total = spent.setdefault(kind, [0.0, 0.0])
            total[0] += tokens
            total[1] += seconds
    return {kind: tokens / seconds for kind, (tokens, seconds) in spent.items() if seconds}


def _tokens(answer: Any) -> int:
    """Tokens that an answer of the server holds, whichever of its forms it has."""
    content = json.loads(answer) if isinstance(answer, str | bytes) else answer
    return int(content["usage"]["completion_tokens"] if "usage" in content else content["tokens_predicted"])
