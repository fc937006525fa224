"""Running engine requests for one API call: choices numbered across prompts, measured, aborted when unwanted."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from agentspec.engines.base import Receipt
from agentspec.errors import EngineUnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from agentspec.api.metrics import Metrics
    from agentspec.engines.base import Chunk, Engine, FinishReason, GenerationRequest, TokenLogprob

MERGE_DEPTH = 16
"""Chunks that may wait between several engine streams and the one client that reads them."""


@dataclass(slots=True)
class Choice:
    """One finished choice, put together from its chunks."""

    text: str = ""
    reasoning: str = ""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason = "stop"
    stop_sequence: str | None = None
    receipt: Receipt = field(default_factory=Receipt)

    def add(self, chunk: Chunk) -> None:
        """Append what one chunk brought."""
        self.text += chunk.text
        self.reasoning += chunk.reasoning
        self.token_ids.extend(chunk.token_ids)
        self.logprobs.extend(chunk.logprobs or ())
        for delta in chunk.tool_calls:
            _merge_tool_call(self.tool_calls, delta)
        if chunk.finish_reason is not None:
            self.finish_reason = chunk.finish_reason
            self.stop_sequence = chunk.stop_sequence
        if chunk.receipt is not None:
            self.receipt = chunk.receipt


async def generate(
    engine: Engine, metrics: Metrics, requests: Sequence[GenerationRequest]
) -> AsyncGenerator[Chunk, None]:
    """Chunks of all `requests`; choice i of request r has index `r * n + i`.

    Closing the generator aborts what still runs.

    Raises:
        AgentspecError: as `Engine.generate` does; the other requests are aborted. Also when the engine gave up
            a choice (`finish_reason` "abort"), which no client asked for.
    """
    streams = [_measured(engine, metrics, request, position) for position, request in enumerate(requests)]
    async with aclosing(streams[0] if len(streams) == 1 else _merge(streams)) as chunks:
        async for chunk in chunks:
            if chunk.finish_reason == "abort":
                raise EngineUnavailableError("the engine aborted this generation; it is stopping or was restarted")
            yield chunk


async def collect(chunks: AsyncGenerator[Chunk, None], count: int) -> list[Choice]:
    """The `count` choices that `chunks` make up, in order."""
    choices = [Choice() for _ in range(count)]
    async with aclosing(chunks):
        async for chunk in chunks:
            choices[chunk.index].add(chunk)
    return choices


async def _measured(
    engine: Engine, metrics: Metrics, request: GenerationRequest, position: int
) -> AsyncGenerator[Chunk, None]:
    timer = metrics.timer()
    stream = engine.generate(request)
    try:
        async for chunk in stream:
            timer.observe(chunk)
            yield replace(chunk, index=position * request.n + chunk.index) if position else chunk
    except BaseException:
        await engine.abort(request.id)
        raise
    finally:
        # Engines stream from asynchronous generators; closing one ends its work without waiting for the collector.
        await cast("AsyncGenerator[Chunk, None]", stream).aclose()


async def _merge(streams: Sequence[AsyncGenerator[Chunk, None]]) -> AsyncGenerator[Chunk, None]:
    """Interleave several streams as their chunks arrive; the first error ends them all."""
    queue: asyncio.Queue[Chunk | Exception | None] = asyncio.Queue(MERGE_DEPTH)

    async def drain(stream: AsyncGenerator[Chunk, None]) -> None:
        try:
            async with aclosing(stream):
                async for chunk in stream:
                    await queue.put(chunk)
        except Exception as error:
            await queue.put(error)
        else:
            await queue.put(None)

    drains = [asyncio.create_task(drain(stream)) for stream in streams]
    running = len(drains)
    try:
        while running:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                running -= 1
            else:
                yield item
    finally:
        for task in drains:
            task.cancel()
        await asyncio.wait(drains)


def _merge_tool_call(calls: list[dict[str, Any]], delta: Mapping[str, Any]) -> None:
    """Fold one OpenAI tool-call delta into the calls so far: ids and names are set, arguments appended."""
    index = delta.get("index", len(calls))
    while len(calls) <= index:
        calls.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
    call = calls[index]
    call["id"] = delta.get("id") or call["id"]
    function = delta.get("function") or {}
    call["function"]["name"] = function.get("name") or call["function"]["name"]
    call["function"]["arguments"] += function.get("arguments") or ""
