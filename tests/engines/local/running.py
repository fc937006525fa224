"""Running engines and collecting what they say."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from agentspec.config import Settings
from agentspec.engines.base import GenerationRequest, SamplingParams
from agentspec.engines.local.engine import LocalEngine


@dataclass
class Result:
    """One choice, put together from its chunks."""

    text: str = ""
    reasoning: str = ""
    tool_calls: list = field(default_factory=list)
    tokens: list = field(default_factory=list)
    logprobs: list = field(default_factory=list)
    finish_reason: str | None = None
    receipt: object = None


@asynccontextmanager
async def running(target, *, drafter=None, repositories=None, processors=None, drafting=None, **engine):
    """A started engine over a loaded target."""
    settings = Settings.load(
        engine={"max_running": 32, "kv_tokens": 64_000, **engine},
        drafting={"max_nodes": 24, "max_depth": 32, **(drafting or {})},
    )
    local = LocalEngine(
        settings, drafter=drafter, repositories=repositories, processors=processors, load=lambda _: target
    )
    await local.start()
    try:
        yield local
    finally:
        await local.stop()


async def collect(engine, request):
    """All choices of a request."""
    results = [Result() for _ in range(request.n)]
    async for chunk in engine.generate(request):
        result = results[chunk.index]
        assert result.finish_reason is None, "a chunk after the last"
        result.text += chunk.text
        result.reasoning += chunk.reasoning
        result.tool_calls += chunk.tool_calls
        assert len({delta["index"] for delta in chunk.tool_calls}) == len(chunk.tool_calls), "one delta of each call"
        result.tokens += chunk.token_ids
        result.logprobs += chunk.logprobs or ()
        result.finish_reason = chunk.finish_reason
        result.receipt = chunk.receipt
        assert (chunk.receipt is None) == (chunk.finish_reason is None)
    return results


async def collect_all(engine, requests):
    """All choices of several concurrent requests."""
    return await asyncio.gather(*(collect(engine, request) for request in requests))


async def until(condition, seconds=5.0):
    """Wait for a condition; returns the seconds it took."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    while not condition():
        assert loop.time() - started < seconds, "the condition did not come true"
        await asyncio.sleep(0.001)
    return loop.time() - started


def ask(id="r", prompt="def main():", n=1, **sampling):
    """A request; keywords that are not fields of it are sampling parameters."""
    names = ("repository", "prediction", "speculation", "output_format", "tool_choice")
    fields = {name: sampling.pop(name) for name in names if name in sampling}
    parameters = {"temperature": 0.0, "max_tokens": 32, **sampling}
    return GenerationRequest(id=id, prompt=prompt, n=n, sampling=SamplingParams(**parameters), **fields)
