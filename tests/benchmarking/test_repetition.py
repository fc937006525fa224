from __future__ import annotations

from typing import TYPE_CHECKING

from agentspec.benchmarking.editing import EditTask
from agentspec.benchmarking.repetition import FEWEST_TOKENS, cut_loops
from agentspec.engines.base import Chunk, GenerationRequest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PASSAGE = list(range(100, 130))


class Answering:
    """Gives the answers that it was made with, in turn."""

    def __init__(self, *answers: list[int]) -> None:
        self.answers = list(answers)
        self.requests: list[GenerationRequest] = []

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        self.requests.append(request)
        yield Chunk(token_ids=tuple(self.answers.pop(0)), finish_reason="length")


async def test_answers_are_bounded_where_they_loop() -> None:
    tasks = [EditTask(name, "whole-file", "prompt", (), 64, "a.py") for name in "123"]
    engine = Answering([*PASSAGE, *PASSAGE], PASSAGE, [1] * 40)
    cut = await cut_loops(engine, tasks, "repository")  # type: ignore[arg-type]
    assert [task.max_tokens for task in cut] == [30, 64, FEWEST_TOKENS]
    assert [task.name for task in cut] == ["1", "2", "3"]
    assert all(request.speculation for request in engine.requests)
