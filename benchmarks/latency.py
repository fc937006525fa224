"""How long drafting takes, step by step, while a recorded output is followed."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from agentspec.benchmarking.replay import accepted_length

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from agentspec.drafters.base import Drafter, DraftRequest

MICROSECONDS = 1e6


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One recorded output, followed once.

    Attributes:
        seconds: `float64[steps]`, wall-clock time of `propose` and `commit`.
        begin_seconds: of `begin`.
        tokens: of the output.
        drafted: nodes proposed.
    """

    seconds: NDArray[np.float64]
    begin_seconds: float
    tokens: int
    drafted: int


def follow(drafter: Drafter, request: DraftRequest, output: NDArray[np.int32], make_budgets: Callable[[], Any]) -> Run:
    """Let a drafter follow `output` (`int32[M]`) from the beginning.

    Args:
        drafter: who proposes.
        request: what it is told in the beginning.
        output: what was said.
        make_budgets: makes what says the budget of each step, see `replay_adapter.BUDGETS`.
    """
    budgets = make_budgets()
    clock = time.perf_counter
    gc.disable()  # it would stop the clock of whichever step it falls into
    try:
        start = clock()
        session = drafter.begin(request)
        begin_seconds = clock() - start
        position = drafted = 0
        seconds = []
        while position < len(output):
            budget = budgets.budget()
            start = clock()
            tree = session.propose(budget)
            proposed = clock() - start
            verdict = output[position : position + accepted_length(tree, output[position:]) + 1]
            start = clock()
            session.commit(verdict)
            seconds.append(proposed + clock() - start)
            budgets.committed(len(verdict))
            position += len(verdict)
            drafted += len(tree)
    finally:
        gc.enable()
    return Run(np.array(seconds), begin_seconds, len(output), drafted)


def least(runs: Sequence[Run]) -> NDArray[np.float64]:
    """`float64[steps]`: the least disturbed time of each step, of several runs that drafted the same."""
    seconds: NDArray[np.float64] = np.min([run.seconds for run in runs], axis=0)
    return seconds


def percentiles(seconds: NDArray[np.float64]) -> str:
    """Median and 99th percentile in microseconds."""
    median, high = np.percentile(seconds * MICROSECONDS, (50, 99))
    return f"{median:.0f} / {high:.0f}"
