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


class LlamaCpp:
    """llama.cpp in this process, answering one request at a time.

    Args:
        gguf: the weights.
        context: tokens of prompt and answer together.
        threads: of llama.cpp.
        batch: tokens of the prompt that are computed at once; None: llama.cpp's own choice.
    """

    def __init__(self, gguf: Path, context: int, threads: int, batch: int | None = None) -> None:
        import xllamacpp  # noqa: PLC0415 - not a dependency, see `require_llama_cpp`

        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(gguf)
        parameters.n_ctx = context
        parameters.n_parallel = 1
        if batch is not None:
            parameters.n_batch = parameters.n_ubatch = batch
        parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
        self._server = xllamacpp.Server(parameters)

    def complete(
        self, prompt: str | Sequence[int], count: int, *, stop: Sequence[str] = (), ignore_eos: bool = False
    ) -> int:
        """Decode greedily what follows, keeping the prompt in the cache.

        Args:
            prompt: text or tokens.
            count: most tokens.
            stop: strings that end the answer.
            ignore_eos: go on behind the end of the text.

        Returns:
            Tokens decoded.
        """
        request: dict[str, Any] = {
            "prompt": prompt if isinstance(prompt, str) else list(prompt),
            "n_predict": count,
            "temperature": 0,
            "cache_prompt": True,
            "stop": list(stop),
            "ignore_eos": ignore_eos,
        }
        return _tokens(self._server.handle_completions(request))


def llama_tokens_per_second(gguf: Path, tasks: Sequence[EditTask], threads: int) -> dict[str, float]:
    """Tokens per second without prefill, by kind of edit and over "all".

    Every request is asked for one token first and then whole, with the prompt in the cache.

    Args:
        gguf: the weights.
        tasks: what to ask.
        threads: of llama.cpp.
    """
    llama = LlamaCpp(gguf, CONTEXT, threads)
    spent: dict[str, list[float]] = {}
    for task in tasks:
        llama.complete(task.prompt, 1, stop=task.stop)  # prefill
        begin = time.perf_counter()
        tokens = llama.complete(task.prompt, task.max_tokens, stop=task.stop)
        seconds = time.perf_counter() - begin
        for kind in (task.kind, "all"):
            total = spent.setdefault(kind, [0.0, 0.0])
            total[0] += tokens
            total[1] += seconds
    return {kind: tokens / seconds for kind, (tokens, seconds) in spent.items() if seconds}


def _tokens(answer: Any) -> int:
    """Tokens that an answer of the server holds, whichever of its forms it has."""
    content = json.loads(answer) if isinstance(answer, str | bytes) else answer
    return int(content["usage"]["completion_tokens"] if "usage" in content else content["tokens_predicted"])
