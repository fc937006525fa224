"""What is measured of a request, and how measurements are pooled: by hand."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np
import pytest

from agentspec.benchmarking.editing import (
    EditTask,
    Pair,
    Spread,
    overall_ratio,
    peak_memory_bytes,
    run_pair,
    summarise_mode,
)
from agentspec.benchmarking.measure import Measurement, measure
from agentspec.engines.base import Chunk, GenerationRequest, Receipt
from agentspec.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TASK = EditTask("1", "whole-file", "prompt", ("```",), 32, "a.py")


class ScriptedEngine:
    """Streams given chunks, with a pause before each; remembers what was asked."""

    def __init__(self, *chunks: Chunk, pause: float = 0.0, error: Exception | None = None) -> None:
        self.chunks = chunks
        self.pause = pause
        self.error = error
        self.requests: list[GenerationRequest] = []

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        self.requests.append(request)
        for chunk in self.chunks:
            await asyncio.sleep(self.pause)
            yield chunk
        if self.error is not None:
            raise self.error


def measurement(*arrivals: tuple[float, int], steps: int = 1, error: str = "") -> Measurement:
    count = sum(tokens for _, tokens in arrivals)
    return Measurement("", tuple(range(count)), arrivals, "stop", Receipt(verify_steps=steps), error)


async def test_text_tokens_and_receipt_are_those_of_the_stream() -> None:
    receipt = Receipt(verify_steps=2)
    engine = ScriptedEngine(
        Chunk(text="a", token_ids=(1,)),
        Chunk(text="bc", token_ids=(2, 3)),
        Chunk(token_ids=(4,), finish_reason="stop", receipt=receipt),
        pause=0.01,
    )
    shown: list[str] = []
    measured = await measure(engine, GenerationRequest("x", "p"), shown.append)  # type: ignore[arg-type]
    assert (measured.text, measured.token_ids, measured.finish_reason) == ("abc", (1, 2, 3, 4), "stop")
    assert measured.receipt is receipt
    assert shown == ["a", "bc", ""]
    assert [count for _, count in measured.arrivals] == [1, 2, 1]
    assert 0.01 <= measured.first_token_seconds < measured.seconds
    assert measured.error == ""


async def test_an_error_is_part_of_the_measurement() -> None:
    engine = ScriptedEngine(Chunk(text="a", token_ids=(1,)), error=EngineError("out of luck"))
    measured = await measure(engine, GenerationRequest("x", "p"))  # type: ignore[arg-type]
    assert (measured.text, measured.error, measured.finish_reason) == ("a", "out of luck", None)


async def test_a_bug_of_the_engine_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        await measure(ScriptedEngine(error=ZeroDivisionError()), GenerationRequest("x", "p"))  # type: ignore[arg-type]


def test_gaps_show_bursts_as_they_are() -> None:
    measured = measurement((1.0, 1), (1.5, 3), (1.75, 0), (2.0, 2))
    np.testing.assert_allclose(measured.step_gaps(), [0.5, 0.5])
    np.testing.assert_allclose(measured.token_gaps(), [0.5, 0.0, 0.0, 0.5, 0.0])
    assert (measured.first_token_seconds, measured.seconds, measured.decode_seconds) == (1.0, 2.0, 1.0)


def test_a_measurement_without_tokens_has_no_times() -> None:
    empty = measurement()
    assert (empty.seconds, empty.first_token_seconds, len(empty.token_gaps()), len(empty.step_gaps())) == (0, 0, 0, 0)
    summary = summarise_mode([empty])
    assert (summary.tokens_per_second, summary.tokens_per_step) == (0.0, 0.0)


def test_a_mode_is_pooled_over_its_requests() -> None:
    summary = summarise_mode([measurement((1.0, 1), (3.0, 5), steps=2), measurement((2.0, 1), (4.0, 1), steps=1)])
    assert (summary.requests, summary.errors, summary.tokens, summary.verify_steps) == (2, 0, 8, 3)
    assert summary.tokens_per_step == pytest.approx(8 / 3)
    assert summary.tokens_per_second == pytest.approx(8 / 7)
    assert summary.decode_tokens_per_second == pytest.approx(6 / 4)
    assert summary.first_token == Spread(1.5, pytest.approx(1.95))


def test_pairs_are_identical_only_without_errors_and_differences() -> None:
    good, other = measurement((2.0, 4)), measurement((2.0, 3))
    assert Pair(TASK, good, good).identical
    assert not Pair(TASK, good, other).identical
    assert not Pair(TASK, good, measurement((1.0, 4), error="failed")).identical


def test_the_ratio_is_one_of_whole_times() -> None:
    slow = Pair(TASK, measurement((6.0, 4)), measurement((2.0, 4)))
    fast = Pair(TASK, measurement((1.0, 4)), measurement((1.0, 4)))
    assert (slow.ratio, fast.ratio, overall_ratio([slow, fast])) == (3.0, 1.0, pytest.approx(7 / 3))
    assert Pair(TASK, measurement((6.0, 4)), measurement()).ratio == 0.0


@pytest.mark.parametrize("drafted_first", [False, True])
async def test_both_modes_get_the_same_greedy_request(drafted_first: bool) -> None:
    engine = ScriptedEngine(Chunk(text="a", token_ids=(1,), finish_reason="stop", receipt=Receipt()))
    shown: list[str] = []
    pair = await run_pair(engine, TASK, "repo", drafted_first=drafted_first, show=shown.append)  # type: ignore[arg-type]
    first, second = engine.requests
    assert (first.speculation, second.speculation) == (drafted_first, not drafted_first)
    assert first.id != second.id
    for request in engine.requests:
        assert (request.prompt, request.sampling.temperature, request.sampling.stop) == ("prompt", 0.0, ("```",))
        assert (request.repository, request.edited_path) == ("repo", "a.py")
    assert pair.identical
    assert shown == ["a"]


def test_peak_memory_grows_with_what_is_held() -> None:
    before = peak_memory_bytes()
    held = np.ones(40 << 20, np.uint8)
    assert peak_memory_bytes() >= before
    assert peak_memory_bytes() > len(held)
