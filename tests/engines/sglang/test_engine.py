"""The engine contract on a real server: answers, receipts, aborts, restarts, and nothing left behind."""

import asyncio
import os
import re
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from agentspec.config import Settings
from agentspec.engines.base import ChatPrompt, Chunk, GenerationRequest, OutputFormat, SamplingParams
from agentspec.engines.sglang.engine import SGLangEngine
from agentspec.errors import AgentspecError, ContextOverflowError, EngineUnavailableError, OverloadedError
from agentspec.index.build import BuildOptions, build_index
from agentspec.index.snapshot import Snapshot
from agentspec.index.store import find_store
from agentspec.index.tokenizer import IndexTokenizer

pytestmark = [pytest.mark.sglang, pytest.mark.asyncio(loop_scope="module")]

PLANTED = "alpha = beta(gamma)\ndelta = epsilon(zeta)\n"
GREEDY = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)


class Repositories:
    """One repository, indexed for the served tokenizer."""

    def __init__(self, root: Path, settings: Settings) -> None:
        self._root, self._directory = root, settings.index.directory

    def snapshot_for(self, repository_id: str, fingerprint: str) -> Snapshot:
        assert repository_id == "planted"
        return find_store(self._directory, self._root, fingerprint).current(fingerprint)


@pytest.fixture(scope="module")
def settings(index_directory: Path) -> Settings:
    return Settings.load(
        engine={"kind": "sglang", "device": "cpu", "kv_tokens": 8192, "max_running": 2, "max_waiting": 2},
        index={"directory": index_directory},
        server={"shutdown_seconds": 10},
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(
    tiny: Path, settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SGLangEngine]:
    repository = tmp_path_factory.mktemp("planted")
    (repository / "a.py").write_text(PLANTED)
    directory = settings.index.directory
    build_index(repository, IndexTokenizer(str(tiny), directory), BuildOptions(directory, 1_000_000))
    running = SGLangEngine(settings, str(tiny), repositories=Repositories(repository, settings))
    with pytest.raises(EngineUnavailableError):
        await collect(running, request("early"))
    await running.start()
    yield running
    await running.stop()
    assert children() == [], "processes of the server are left"


def children() -> list[str]:
    return [
        child.name() for child in psutil.Process().children(recursive=True) if "sglang" in " ".join(child.cmdline())
    ]


def request(name: str, prompt: Any = "def f(", sampling: SamplingParams = GREEDY, **fields: Any) -> GenerationRequest:
    return GenerationRequest(id=name, prompt=prompt, sampling=sampling, **fields)


async def collect(engine: SGLangEngine, what: GenerationRequest) -> list[Chunk]:
    return [chunk async for chunk in engine.generate(what)]


def text_of(chunks: list[Chunk], index: int = 0) -> str:
    return "".join(chunk.text for chunk in chunks if chunk.index == index)


async def test_text_tokens_and_messages(engine: SGLangEngine) -> None:
    tokens = await engine.tokenize("def f(")
    assert await engine.detokenize(tokens) == "def f("
    by_text = await collect(engine, request("text"))
    by_tokens = await collect(engine, request("tokens", tuple(tokens)))
    assert text_of(by_text) == text_of(by_tokens)
    assert sum(len(chunk.token_ids) for chunk in by_text) == 32
    assert by_text[-1].finish_reason == "length"
    chat = ChatPrompt([{"role": "user", "content": "def f("}])
    rendered = await engine.detokenize(await engine.tokenize(chat))
    assert rendered == "<|im_start|>user\ndef f(<|im_end|>\n<|im_start|>assistant\n"
    by_chat = await collect(engine, request("chat", chat))
    assert text_of(by_chat) == text_of(await collect(engine, request("chat text", rendered)))


async def test_an_answer_that_is_begun_needs_no_reasoning(engine: SGLangEngine) -> None:
    chat = ChatPrompt([{"role": "user", "content": "hi"}], answer_prefix="```\n")
    opened = replace(chat, template_kwargs={"opened": "<think>\n"})
    begin = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert await engine.detokenize(await engine.tokenize(replace(opened, answer_prefix=""))) == f"{begin}<think>\n"
    assert await engine.detokenize(await engine.tokenize(opened)) == f"{begin}<think>\n\n</think>\n\n```\n"
    assert await engine.detokenize(await engine.tokenize(chat)) == f"{begin}```\n"
    answer = await collect(engine, request("begun", opened))
    rendered = tuple(await engine.tokenize(opened))
    assert text_of(answer) == text_of(await collect(engine, request("begun tokens", rendered)))


async def test_stats_come_from_the_server(engine: SGLangEngine) -> None:
    await collect(engine, request("stats"))
    await asyncio.sleep(2.5)
    stats = engine.stats()
    assert stats.ready
    assert (stats.running, stats.waiting, stats.kv_tokens_total) == (0, 0, 8192)
    assert 32 < stats.kv_tokens_used < 8192, "prefixes that are kept for reuse count as used"
    assert stats.progress


async def test_tools_go_through_the_chat_endpoint(engine: SGLangEngine) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    chat = ChatPrompt([{"role": "user", "content": "def f("}], tools=[tool])
    chunks = await collect(engine, request("tools", chat))
    receipt = chunks[-1].receipt
    assert receipt is not None
    assert receipt.completion_tokens == 32
    assert receipt.verify_steps > 0


async def test_choices_are_told_apart(engine: SGLangEngine) -> None:
    chunks = await collect(engine, request("two", sampling=replace(GREEDY, temperature=1.0, seed=5), n=2))
    ends = [chunk for chunk in chunks if chunk.finish_reason]
    assert sorted(chunk.index for chunk in ends) == [0, 1]
    assert text_of(chunks, 0) != text_of(chunks, 1)
    assert "the seed has no effect" in ends[0].receipt.warnings[0]


async def test_logprobs(engine: SGLangEngine) -> None:
    chunks = await collect(engine, request("logprobs", sampling=replace(GREEDY, logprobs=2)))
    rows = [row for chunk in chunks for row in chunk.logprobs or ()]
    assert [row.token_id for row in rows] == [token for chunk in chunks for token in chunk.token_ids]
    assert all(row.top[0][0] == row.token_id and len(row.top) == 2 for row in rows)


async def test_stop_strings_never_show(engine: SGLangEngine) -> None:
    whole = text_of(await collect(engine, request("whole")))
    stop = whole[6:10]
    chunks = await collect(engine, request("stop", sampling=replace(GREEDY, stop=(stop,))))
    assert text_of(chunks) == whole[: whole.index(stop)]
    assert chunks[-1].finish_reason == "stop"


async def test_receipts_count_predictions_and_cached_tokens(engine: SGLangEngine) -> None:
    first = await collect(engine, request("first", "class Receipt:"))
    again = await collect(engine, request("again", "class Receipt:", prediction=text_of(first)))
    receipt = again[-1].receipt
    assert receipt is not None
    assert receipt.accepted["prediction"] <= receipt.drafted["prediction"]
    assert receipt.cached_tokens > 0
    assert receipt.completion_tokens == 32
    assert text_of(again) == text_of(first)
    plain = await collect(engine, request("plain", "class Receipt:", speculation=False))
    assert plain[-1].receipt.verify_steps == 31
    assert plain[-1].receipt.drafted == {}


async def test_repositories_are_used_by_id(engine: SGLangEngine) -> None:
    """A grammar makes the random model write what the repository holds."""
    form = OutputFormat("regex", re.escape(PLANTED))
    asked = request(
        "repository",
        "Write it.",
        replace(GREEDY, max_tokens=200, ignore_eos=False),
        repository="planted",
        edited_path="a.py",
        output_format=form,
    )
    chunks = await collect(engine, asked)
    assert "".join(chunk.text for chunk in chunks) == PLANTED
    receipt = chunks[-1].receipt
    assert receipt is not None
    assert receipt.warnings == ()
    assert receipt.accepted.get("repository", 0) + receipt.accepted.get("edit", 0) > 0


async def test_closing_the_stream_frees_the_slot(engine: SGLangEngine) -> None:
    """Two requests fill the server; when one is dropped the next begins at once, long before the other ends."""
    endless = replace(GREEDY, max_tokens=2500)
    streams = [engine.generate(request(f"endless {number}", sampling=endless)) for number in range(2)]
    for stream in streams:
        await anext(stream)
    waiting = asyncio.create_task(collect(engine, request("next", sampling=replace(GREEDY, max_tokens=2))))
    await asyncio.sleep(0.5)
    assert not waiting.done()
    began = time.monotonic()
    await streams[0].aclose()
    closed = time.monotonic() - began
    await asyncio.wait_for(waiting, 30)
    assert closed < 1.0
    await engine.abort("endless 1")
    rest = [chunk async for chunk in streams[1]]
    assert rest[-1].finish_reason == "abort"


async def test_a_full_queue_asks_for_a_retry(engine: SGLangEngine) -> None:
    many = [
        collect(engine, request(f"many {number}", sampling=replace(GREEDY, max_tokens=400))) for number in range(12)
    ]
    results = await asyncio.gather(*many, return_exceptions=True)
    refused = [result for result in results if isinstance(result, OverloadedError)]
    assert refused
    assert all(error.retry_after > 0 for error in refused)
    assert all(isinstance(result, list | OverloadedError) for result in results)


async def test_a_prompt_that_does_not_fit_is_refused(engine: SGLangEngine) -> None:
    with pytest.raises(ContextOverflowError):
        await collect(engine, request("long", tuple([50] * 9000)))


async def test_a_dead_server_is_started_again(engine: SGLangEngine) -> None:
    everyone = psutil.Process().children(recursive=True)
    (scheduler,) = [child for child in everyone if "scheduler" in " ".join(child.cmdline())]
    os.kill(scheduler.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while engine.stats().ready and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
    with pytest.raises(AgentspecError) as refused:
        await collect(engine, request("while down"))
    assert refused.value.status == 503
    while not engine.stats().ready:
        await asyncio.sleep(0.5)
    assert len(await collect(engine, request("after"))) > 0
