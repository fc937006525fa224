"""Tasks whose answers end where the model begins to repeat itself."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agentspec.benchmarking.measure import measure
from agentspec.repetition import tokens_before_loop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentspec.benchmarking.editing import EditTask
    from agentspec.engines.base import Engine

FEWEST_TOKENS = 8
"""Of an answer that is cut."""


async def cut_loops(engine: Engine, tasks: Sequence[EditTask], repository: str) -> list[EditTask]:
    """The tasks, their answers bounded to what the model says before it loops.

    Args:
        engine: answers each task once, drafts allowed.
        tasks: what to ask.
        repository: id under which the engine knows the repository.
    """
    bounded = []
    for task in tasks:
        answer = (await measure(engine, task.request(repository, speculation=True))).token_ids
        said = tokens_before_loop(answer)
        bounded.append(replace(task, max_tokens=max(said, FEWEST_TOKENS)) if said < len(answer) else task)
    return bounded
