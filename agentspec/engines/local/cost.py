"""What a forward pass costs on this machine, as a function of its tokens and their context."""

from __future__ import annotations

import time
from bisect import bisect_left
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

import torch

from agentspec.engines.local.measurements import remembered
from agentspec.engines.local.model import SequenceInput

if TYPE_CHECKING:
    from pathlib import Path

    from agentspec.engines.local.kv_cache import KVCache
    from agentspec.engines.local.model import TargetModel

GRID = (1, 2, 4, 8, 12, 16, 24, 32, 64)
"""Tokens of the measured passes: closest where verify steps are, and where kernels go from one block of rows to two."""

SHORT_CONTEXT = 64
LONG_CONTEXT = 2048
"""Contexts of the measured passes; attention's cost is linear between and beyond them."""

REPETITIONS = 5
BUDGET_SECONDS = 1.5
"""Measuring stops here, and what is left is extrapolated."""


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Seconds of a pass over n tokens at context c: `base(n) + slope(n) * c`, piecewise linear in n.

    Attributes:
        tokens: sizes measured, ascending.
        base: seconds at each size with no context; never falling.
        slope: additional seconds per token of context at each size.
    """

    tokens: tuple[int, ...]
    base: tuple[float, ...]
    slope: tuple[float, ...]

    def seconds(self, rows: int, context: int) -> float:
        """Seconds of a pass over `rows` tokens, each of which sees `context` committed ones."""
        return self._at(self.base, rows) + self._at(self.slope, rows) * context

    def _at(self, values: tuple[float, ...], rows: int) -> float:
        last = len(self.tokens) - 1
        if last == 0 or rows <= self.tokens[0]:
            return values[0]
        # Beyond the largest size as between the last two.
        upper = min(bisect_left(self.tokens, rows), last)
        slope = (values[upper] - values[upper - 1]) / (self.tokens[upper] - self.tokens[upper - 1])
        if rows > self.tokens[last]:
            slope = max(0.0, slope)
        return values[upper] + slope * (rows - self.tokens[upper])


def measure_cost(model: TargetModel, budget: float = BUDGET_SECONDS) -> CostCurve:
    """Time passes of `model` over a small grid.

    Other work on the machine only ever adds time, so the fastest of a few repetitions counts; and all sizes take turns,
    so that a busy moment meets none of them in every repetition. A model that computes on the calling thread alone is
    timed by that thread's processor time, in which the turns of other programs do not show at all.

    Args:
        model: the target; its forward is run on caches of its own.
        budget: seconds after which no further size is begun.
    """
    deadline = time.perf_counter() + budget
    long = min(LONG_CONTEXT, model.context_length - GRID[-1])
    short = min(SHORT_CONTEXT, max(0, long // 2))
    cache = model.new_cache(long + GRID[-1])
    _time_pass(model, cache, 1, short)  # first use: pages, kernels, threads
    fastest: dict[tuple[int, int], float] = {}
    for tokens in GRID * REPETITIONS:
        if fastest and time.perf_counter() > deadline:
            break
        for context in (short, long):
            seconds = _time_pass(model, cache, tokens, context)
            fastest[tokens, context] = min(seconds, fastest.get((tokens, context), seconds))
    sizes = [tokens for tokens in GRID if (tokens, long) in fastest]
    base: list[float] = []
    slope: list[float] = []
    for tokens in sizes:
        near, far = fastest[tokens, short], fastest[tokens, long]
        slope.append(max(0.0, (far - near) / (long - short)))
        base.append(max(near - slope[-1] * short, base[-1] if base else 0.0))
    return CostCurve(tuple(sizes), tuple(base), tuple(slope))


def _time_pass(model: TargetModel, cache: KVCache, tokens: int, context: int) -> float:
    """Seconds of a chain of `tokens` at `context`; the content of keys and values does not matter."""
    clock = time.thread_time if model.runs_on_caller else time.perf_counter
    cache.length = context
    inputs = [SequenceInput(cache, torch.zeros(tokens, dtype=torch.int64), torch.arange(context, context + tokens))]
    start = clock()
    model.forward(inputs)
    model.synchronise()
    return clock() - start


def cost_curve(model: TargetModel, cache_directory: Path) -> CostCurve:
    """The curve of `model` on this machine: measured once, then remembered in `cache_directory`."""
    measured = remembered(cache_directory, f"cost {model.fingerprint}", lambda: asdict(measure_cost(model)))
    return CostCurve(*(tuple(measured[field.name]) for field in fields(CostCurve)))
