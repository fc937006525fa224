"""Replay of a trace against a drafter, as greedy verification would have it.

Under greedy verification the tokens that a step accepts depend only on the recorded output, so a drafter can be
measured without running the target: each step accepts the longest drafted path that the output follows, and one bonus
token. Tokens per step count the bonus token; drafted nodes per step say what the verification had to carry.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from agentspec.drafters.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from agentspec.drafters.base import Budget, Drafter, DraftRequest
    from agentspec.drafters.tree import DraftTree


@dataclass(frozen=True, slots=True, eq=False)
class ReplayResult:
    """What one drafter did on one trace.

    Attributes:
        tokens: length of the recorded output.
        steps: verify steps it took.
        drafted: nodes proposed in all.
        begin_seconds: time to start the request (`Drafter.begin`).
        step_seconds: `float64[steps]`, time in `propose` plus `commit` of each step.
    """

    tokens: int
    steps: int
    drafted: int
    begin_seconds: float
    step_seconds: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ReplaySummary:
    """Results pooled over traces.

    Attributes:
        traces: how many.
        tokens: output tokens in all.
        tokens_per_step: pooled, the bonus token included.
        drafted_per_step: pooled.
        step_p50: median seconds of `propose` plus `commit`.
        step_p99: 99th percentile of the same.
        begin_p50: median seconds of `begin`.
    """

    traces: int
    tokens: int
    tokens_per_step: float
    drafted_per_step: float
    step_p50: float
    step_p99: float
    begin_p50: float


def accepted_length(tree: DraftTree, output: NDArray[np.int32]) -> int:
    """Length of the drafted path that `output` (`int32[M]`, from the next token on) follows."""
    reached, length = ROOT, 0
    # Parents precede children and siblings differ, so one pass in order follows the only path there is.
    for node, (token, parent) in enumerate(zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True)):
        if length == len(output):
            break
        if parent == reached and token == output[length]:
            reached, length = node, length + 1
    return length


def replay(drafter: Drafter, request: DraftRequest, output: NDArray[np.int32], budget: Budget) -> ReplayResult:
    """Let a drafter follow a recorded output.

    Args:
        drafter: who proposes.
        request: what it is told in the beginning.
        output: `int32[M]`, what the target said.
        budget: the same in each step.

    Raises:
        DraftTreeError: the drafter broke the tree's contract.
    """
    # The collector would stop the clock of whichever step it falls into.
    gc.disable()
    try:
        start = time.perf_counter()
        session = drafter.begin(request)
        begin_seconds = time.perf_counter() - start
        position, drafted, step_seconds = 0, 0, []
        while position < len(output):
            start = time.perf_counter()
            tree = session.propose(budget)
            proposed = time.perf_counter() - start
            tree.validate(budget.max_nodes, budget.max_depth)
            accepted = accepted_length(tree, output[position:])
            verdict = output[position : position + accepted + 1]
            start = time.perf_counter()
            session.commit(verdict)
            step_seconds.append(proposed + time.perf_counter() - start)
            position += len(verdict)
            drafted += len(tree)
    finally:
        gc.enable()
    return ReplayResult(len(output), len(step_seconds), drafted, begin_seconds, np.array(step_seconds))


def summarise(results: Sequence[ReplayResult]) -> ReplaySummary:
    """Pool results: every step weighs the same.

    Args:
        results: at least one.
    """
    steps = sum(result.steps for result in results)
    tokens = sum(result.tokens for result in results)
    seconds = np.concatenate([result.step_seconds for result in results])
    return ReplaySummary(
        traces=len(results),
        tokens=tokens,
        tokens_per_step=tokens / steps,
        drafted_per_step=sum(result.drafted for result in results) / steps,
        step_p50=float(np.percentile(seconds, 50)),
        step_p99=float(np.percentile(seconds, 99)),
        begin_p50=float(np.median([result.begin_seconds for result in results])),
    )
