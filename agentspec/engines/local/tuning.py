"""Element type and thread count for the CPU, chosen by measurement."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from agentspec.engines.local.hardware import usable_cores
from agentspec.engines.local.measurements import remembered
from agentspec.engines.local.model import SequenceInput
from agentspec.kernels import _native

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agentspec.engines.local.native_model import NativeModel

STEP_SIZES = (1, 16)
"""Tokens of the timed passes: a plain step and a typical verify step count alike."""

REPETITIONS = 5
WORTHWHILE = 0.95
"""Another thread must bring the time down to this share, or the core is left to others."""

PROBE_HIDDEN, PROBE_INTERMEDIATE = 1024, 4096
"""Sizes of the one layer on which element types are compared: more weights than caches hold."""


def fastest_threads(model: NativeModel, cache_directory: Path) -> int:
    """The thread count with which `model` runs fastest here. Leaves the model with some thread count."""

    def measure() -> dict[str, Any]:
        best, best_seconds = 1, float("inf")
        threads = 1
        while threads <= usable_cores():
            model.threads = threads
            seconds = _model_seconds(model)
            if seconds > WORTHWHILE * best_seconds:
                break
            best, best_seconds = threads, seconds
            threads = min(2 * threads, usable_cores()) if threads < usable_cores() else threads + 1
        return {"threads": best}

    model.threads = 1
    threads: int = remembered(cache_directory, f"threads {model.fingerprint}", measure)["threads"]
    return threads


def fastest_dtype(cache_directory: Path) -> torch.dtype:
    """The element type, float32 or bfloat16, whose weights this processor multiplies faster."""

    def measure() -> dict[str, Any]:
        seconds = {bfloat16: _layer_seconds(bfloat16) for bfloat16 in (False, True)}
        return {"bfloat16": seconds[True] < seconds[False]}

    return torch.bfloat16 if remembered(cache_directory, "dtype", measure)["bfloat16"] else torch.float32


def _best_seconds(run: Callable[[], object]) -> float:
    """Seconds of the fastest of a few runs, the first one apart."""
    run()
    times = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def _model_seconds(model: NativeModel) -> float:
    cache = model.new_cache(max(STEP_SIZES))
    passes = [[SequenceInput(cache, torch.zeros(n, dtype=torch.int64), torch.arange(n))] for n in STEP_SIZES]
    return sum(_best_seconds(partial(model.forward, inputs)) for inputs in passes)


def _layer_seconds(bfloat16: bool) -> float:
    """Seconds of one wide layer over `STEP_SIZES`, its weights all zero (the time does not depend on them)."""
    heads, head_dim = PROBE_HIDDEN // 64, 64
    element = np.int16 if bfloat16 else np.float32
    decoder = _native.Decoder(
        hidden=PROBE_HIDDEN,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        intermediate=PROBE_INTERMEDIATE,
        norm_epsilon=1e-6,
        bfloat16=bfloat16,
        threads=1,
    )
    norm = np.ones(PROBE_HIDDEN, np.float32)
    decoder.add_layer(
        attention_norm=norm,
        qkv=np.zeros((3 * PROBE_HIDDEN, PROBE_HIDDEN), element),
        qkv_bias=None,
        query_norm=None,
        key_norm=None,
        output=np.zeros((PROBE_HIDDEN, PROBE_HIDDEN), element),
        output_bias=None,
        feed_norm=norm,
        gate_up=np.zeros((2 * PROBE_INTERMEDIATE, PROBE_HIDDEN), element),
        gate_up_bias=None,
        down=np.zeros((PROBE_HIDDEN, PROBE_INTERMEDIATE), element),
        down_bias=None,
    )
    decoder.set_head(norm, np.zeros((16, PROBE_HIDDEN), element))
    cache = np.zeros((1, heads, max(STEP_SIZES), head_dim), element)

    def run(tokens: int) -> None:
        decoder.forward(
            stream=np.zeros((tokens, PROBE_HIDDEN), np.float32),
            cosine=np.ones((tokens, head_dim // 2), np.float32),
            sine=np.zeros((tokens, head_dim // 2), np.float32),
            keys=[cache],
            values=[cache],
            lengths=[0],
            counts=[tokens],
            masks=[None],
            rows=np.zeros(1, np.int64),
            capture=[],
            logits=np.zeros((1, 16), np.float32),
            hidden=np.zeros((1, 0), np.float32),
        )

    return sum(_best_seconds(partial(run, tokens)) for tokens in STEP_SIZES)
