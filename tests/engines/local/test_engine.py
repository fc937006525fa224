"""The engine behind its contract: errors, limits, cancellation, receipts."""

import asyncio
import math
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from agentspec.config import Settings
from agentspec.engines.base import ChatPrompt
from agentspec.engines.local.engine import LocalEngine
from agentspec.engines.local.target import Target
from agentspec.errors import (
    ContextOverflowError,
    EngineUnavailableError,
    IndexStoreError,
    InvalidRequestError,
    ModelError,
    NotFoundError,
    OverloadedError,
    TokenizerMismatchError,
)
from tests.engines.local.running import ask, collect, collect_all, running, until
from tests.engines.local.scripted_drafters import ScriptedDrafter, noisy_oracle, tree_from_edges
from tests.engines.local.tiny_target import CONTEXT


class SlowModel:
    """The tiny model at a speed that tests can watch."""

    def __init__(self, model, seconds=0.01):
        self._model = model
        self.seconds = seconds
        self.passes = 0

    def __getattr__(self, name):
        return getattr(self._model, name)

    def forward(self, inputs):
        time.sleep(self.seconds)
        self.passes += 1
        return self._model.forward(inputs)


@pytest.fixture
def slow(tiny):
    return Target(tiny.name, SlowModel(tiny.model), tiny.tokenizer, tiny.cost)


def endless(**fields):
    return ask(max_tokens=400, ignore_eos=True, **fields)


async def test_chat_is_rendered_by_the_models_template(tiny):
    chat = ChatPrompt([{"role": "user", "content": "hello"}])
    async with running(tiny) as engine:
        tokens = await engine.tokenize(chat)
        assert await engine.detokenize(tokens) == "<|start|>user\nhello<|end|>\n<|start|>assistant\n"
        [result] = await collect(engine, ask(prompt=chat, max_tokens=3))
        assert result.receipt.prompt_tokens == len(tokens)
        assert await engine.tokenize("hi") == [0, *tiny.tokenizer.encode("hi")]


async def test_max_tokens_is_exact(tiny):
    async with running(tiny, drafter=noisy_oracle([[1] * 20], tiny.model.vocab_size)) as engine:
        for count in range(1, 9):
            [result] = await collect(engine, ask(max_tokens=count, logit_bias={1: 100.0}))
            assert result.tokens == [1] * count
            assert result.finish_reason == "length"
            assert result.receipt.completion_tokens == count


async def test_without_max_tokens_the_context_is_the_bound(tiny):
    async with running(tiny) as engine:
        [result] = await collect(
            engine, ask(prompt=tuple([5] * (CONTEXT - 9)), max_tokens=None, ignore_eos=True, logit_bias={1: 100.0})
        )
    assert len(result.tokens) == 9
    assert result.finish_reason == "length"


async def test_stop_strings_cut_text_but_count_tokens(tiny):
    async with running(tiny) as engine:
        [whole] = await collect(engine, ask(temperature=1.0, seed=3))
        stop = whole.text[10:13]
        [cut] = await collect(engine, ask(temperature=1.0, seed=3, stop=(stop,)))
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.finish_reason == "stop"
    assert whole.tokens[: len(cut.tokens)] == cut.tokens
    assert cut.receipt.completion_tokens == len(cut.tokens) < len(whole.tokens)


async def test_logprobs_are_log_probabilities(tiny):
    async with running(tiny) as engine:
        [result] = await collect(engine, ask(logprobs=4, max_tokens=5))
    assert len(result.logprobs) == 5
    for item in result.logprobs:
        assert item.token_id == item.top[0][0]  # greedy: the drawn token is the most likely one
        assert item.logprob == item.top[0][2] < 0
        assert sum(math.exp(p) for _, _, p in item.top) < 1
        assert item.text == tiny.tokenizer.decode([item.token_id])


async def test_an_unseeded_request_is_random(tiny):
    async with running(tiny) as engine:
        results = await collect_all(engine, [ask(id=str(i), temperature=1.5, max_tokens=12) for i in range(3)])
    assert len({tuple(choices[0].tokens) for choices in results}) == 3


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": 2.0}, "min_p"),
        ({"presence_penalty": math.inf}, "presence_penalty"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logprobs": 10**6}, "logprobs"),
        ({"logit_bias": {10**9: 1.0}}, "logit_bias"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
        ({"logit_bias": {1: math.nan}}, "logit_bias"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"prompt": ()}, "prompt"),
        ({"prompt": (1, 10**9)}, "prompt"),
        ({"prompt": (1, -1)}, "prompt"),
        ({"prompt": "lone \ud800 surrogate"}, "prompt"),
        ({"prompt": ChatPrompt([{"role": "oracle", "content": "?"}])}, "messages"),
    ],
)
async def test_bad_requests_name_what_is_wrong_and_harm_nothing(tiny, fields, param):
    async with running(tiny) as engine:
        with pytest.raises(InvalidRequestError) as caught:
            await collect(engine, ask(**fields))
        assert caught.value.param == param
        assert len((await collect(engine, ask(max_tokens=2)))[0].tokens) == 2


async def test_context_overflow_in_words_that_clients_know(tiny):
    async with running(tiny) as engine:
        with pytest.raises(ContextOverflowError) as caught:
            await collect(engine, ask(prompt=tuple([5] * 500), max_tokens=20))
        assert str(caught.value).startswith(
            "This model's maximum context length is 512 tokens. However, you requested 520 tokens "
            "(500 in the messages, 20 in the completion)."
        )
        assert caught.value.code == "context_length_exceeded"
        with pytest.raises(ContextOverflowError, match="513 tokens"):
            await collect(engine, ask(prompt=tuple([5] * 512), max_tokens=None))


async def test_memory_bounds_are_said_and_advertised(tiny):
    async with running(tiny, kv_tokens=304) as engine:
        assert engine.model.context_length == 304 - 24  # the draft's nodes need room too
        [result] = await collect(engine, ask(prompt=tuple([5] * 274), max_tokens=None, ignore_eos=True))
        assert len(result.tokens) == 6
        with pytest.raises(InvalidRequestError, match=r"4 choices .* need 496 .* has 304"):
            await collect(engine, ask(prompt=tuple([5] * 90), max_tokens=10, n=4))


async def test_a_full_queue_refuses_and_recovers(slow):
    async with running(slow, max_running=2, max_waiting=1) as engine:
        streams = [asyncio.create_task(collect(engine, ask(id=str(i), max_tokens=20))) for i in range(3)]
        await until(lambda: engine.stats().running == 2)
        assert engine.stats().waiting == 1
        with pytest.raises(OverloadedError) as caught:
            await collect(engine, ask(id="late"))
        assert caught.value.retry_after >= 1
        await asyncio.gather(*streams)
        assert (await collect(engine, ask(id="late", max_tokens=2)))[0].finish_reason == "length"


async def test_ids_must_be_unique_while_they_run(slow):
    async with running(slow) as engine:
        first = asyncio.create_task(collect(engine, ask(max_tokens=10)))
        await until(lambda: engine.stats().running == 1)
        with pytest.raises(InvalidRequestError, match="unique"):
            await collect(engine, ask())
        await first
        await collect(engine, ask(max_tokens=1))


async def test_closing_the_stream_frees_the_slot_within_a_step(slow):
    async with running(slow, max_running=1) as engine:
        stream = engine.generate(endless(id="a"))
        await anext(stream)
        waiting = asyncio.create_task(collect(engine, ask(id="b", max_tokens=1)))
        await until(lambda: engine.stats().waiting == 1)
        passes = slow.model.passes
        await stream.aclose()
        assert await until(waiting.done) < 0.1
        assert slow.model.passes - passes <= 3  # the one under way, and the second request's


async def test_a_cancelled_reader_frees_the_slot(slow):
    async with running(slow) as engine:
        task = asyncio.create_task(collect(engine, endless()))
        await until(lambda: engine.stats().running == 1)
        task.cancel()
        assert await until(lambda: engine.stats().running == 0) < 0.1
        with pytest.raises(asyncio.CancelledError):
            await task
        assert engine.stats().waiting == 0


async def test_a_long_prompt_is_given_up_within_a_chunk(slow):
    slow.model.seconds = 0.03
    async with running(slow) as engine:
        other = asyncio.create_task(collect(engine, endless(id="other")))
        await until(lambda: engine.stats().running == 1)
        task = asyncio.create_task(collect(engine, ask(id="a", prompt=tuple([5] * 470))))
        await until(lambda: engine.stats().running == 2)
        task.cancel()
        assert await until(lambda: engine.stats().running == 1) < 0.1
        other.cancel()


async def test_abort_ends_the_stream_with_its_receipt(slow):
    async with running(slow) as engine:
        task = asyncio.create_task(collect(engine, endless(id="a", n=2)))
        await until(lambda: slow.model.passes > 3)
        await engine.abort("a")
        await engine.abort("unknown")
        results = await task
        assert [result.finish_reason for result in results] == ["abort", "abort"]
        assert all(result.receipt.completion_tokens == len(result.tokens) > 0 for result in results)


async def test_abort_of_a_waiting_request(slow):
    async with running(slow, max_running=1) as engine:
        first = asyncio.create_task(collect(engine, endless(id="a")))
        await until(lambda: engine.stats().running == 1)
        second = asyncio.create_task(collect(engine, endless(id="b")))
        await until(lambda: engine.stats().waiting == 1)
        await engine.abort("b")
        assert (await second)[0].finish_reason == "abort"
        assert (await second)[0].tokens == []
        await engine.abort("a")
        await first


async def test_stopping_aborts_what_runs(slow):
    async with running(slow) as engine:
        task = asyncio.create_task(collect(engine, endless()))
        await until(lambda: engine.stats().running == 1)
        await engine.stop()
        assert (await task)[0].finish_reason == "abort"
        assert not engine.stats().ready
        with pytest.raises(EngineUnavailableError):
            await collect(engine, ask())
        await engine.stop()


async def test_before_the_start_nothing_is_served(tiny):
    engine = LocalEngine(Settings(), load=lambda _: tiny)
    assert not engine.stats().ready
    with pytest.raises(EngineUnavailableError):
        await collect(engine, ask())
    with pytest.raises(EngineUnavailableError):
        _ = engine.model


async def test_a_model_that_cannot_be_loaded_is_an_error_of_start():
    def load(settings):
        raise ModelError("no such file")

    with pytest.raises(ModelError, match="no such file"):
        await LocalEngine(Settings(), load=load).start()


async def test_stats_count_slots_and_progress(slow):
    async with running(slow, kv_tokens=5000, retained_prefixes=2) as engine:
        before = engine.stats()
        assert (before.ready, before.kv_tokens_used, before.kv_tokens_total) == (True, 0, 5000)
        task = asyncio.create_task(collect(engine, ask(prompt=tuple([5] * 20), max_tokens=36)))
        await until(lambda: slow.model.passes > 2)
        assert engine.stats().kv_tokens_used == 20 + 36 + 24
        assert engine.stats().progress > before.progress
        await task
        assert engine.stats().running == 0


async def test_a_broken_scheduler_fails_its_requests_and_serves_the_next(slow, monkeypatch):
    async with running(slow) as engine:
        task = asyncio.create_task(collect(engine, endless()))
        await until(lambda: engine.stats().running == 1)
        scheduler = engine._loaded.scheduler
        with monkeypatch.context() as patched:
            patched.setattr(scheduler, "_admit", lambda: 1 / 0)
            with pytest.raises(Exception, match="the engine failed"):
                await task
        assert engine.stats().kv_tokens_used == 0
        assert (await collect(engine, ask(max_tokens=1)))[0].finish_reason == "length"


async def test_an_engine_that_cannot_recover_says_so(slow, monkeypatch):
    """Nothing hangs, nothing more is taken, and `/ready` can tell."""
    async with running(slow) as engine:
        task = asyncio.create_task(collect(engine, endless()))
        await until(lambda: engine.stats().running == 1)
        scheduler = engine._loaded.scheduler
        monkeypatch.setattr(scheduler, "_admit", lambda: 1 / 0)
        monkeypatch.setattr(scheduler, "fail_all", lambda error: 1 / 0)
        with pytest.raises(EngineUnavailableError, match="restart"):
            await task
        assert not engine.stats().ready
        with pytest.raises(EngineUnavailableError):
            await collect(engine, ask())


async def test_a_request_still_being_prepared_when_the_engine_stops_is_refused(tiny, monkeypatch):
    async with running(tiny) as engine:
        prepare = engine._loaded.preparation.prepare
        release = threading.Event()

        def slow_prepare(request):
            release.wait(5)
            return prepare(request)

        monkeypatch.setattr(type(engine._loaded.preparation), "prepare", lambda self, request: slow_prepare(request))
        task = asyncio.create_task(collect(engine, ask()))
        await until(lambda: engine.stats().waiting == 1)
        await engine.stop()
        release.set()
        with pytest.raises(EngineUnavailableError):
            await task


async def test_speculation_can_be_switched_off(tiny):
    drafter = ScriptedDrafter(lambda written, budget: tree_from_edges([(-1, 1, 0)]))
    async with running(tiny, drafter=drafter) as engine:
        [off] = await collect(engine, ask(speculation=False))
        [on] = await collect(engine, ask())
    async with running(tiny, drafter=drafter, speculation=False) as engine:
        [engine_off] = await collect(engine, ask())
    assert (off.receipt.speculation, on.receipt.speculation, engine_off.receipt.speculation) == (False, True, False)
    assert off.receipt.drafted == engine_off.receipt.drafted == {}
    assert on.receipt.drafted["request"] > 0


async def test_the_drafter_is_told_what_it_may_know(tiny):
    drafter = ScriptedDrafter(lambda written, budget: tree_from_edges([]))
    async with running(tiny, drafter=drafter) as engine:
        await collect(engine, replace(ask(prediction="x = 1\n"), edited_path="a.py"))
    _, request = drafter.requests  # the first one was the engine's own, at its start
    assert request.prompt.dtype == np.int32
    assert request.prediction.tolist() == tiny.tokenizer.encode("x = 1\n")
    assert request.edited_path == "a.py"
    assert request.codec.decode(request.codec.encode("a b")) == "a b"


class Repositories:
    """Answers with what a test wants."""

    def __init__(self, answer):
        self.answer = answer
        self.asked = []

    def snapshot_for(self, repository_id, fingerprint):
        self.asked.append((repository_id, fingerprint))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    "error",
    [
        NotFoundError("no repository r1"),
        TokenizerMismatchError("made with another tokenizer"),
        IndexStoreError("manifest is truncated"),
        OSError("disk on fire"),
    ],
)
async def test_an_unusable_repository_is_a_warning(tiny, error):
    repositories = Repositories(error)
    async with running(tiny, repositories=repositories) as engine:
        [result] = await collect(engine, ask(repository="r1", max_tokens=3))
    assert len(result.tokens) == 3
    assert str(error) in result.receipt.warnings[0]
    assert repositories.asked == [("r1", tiny.tokenizer.fingerprint)]


async def test_without_repositories_naming_one_is_a_warning(tiny):
    async with running(tiny) as engine:
        [result] = await collect(engine, ask(repository="r1", max_tokens=3))
    assert "no repositories" in result.receipt.warnings[0]


async def test_a_drafter_that_cannot_begin_keeps_nobody_from_decoding(tiny):
    class Broken:
        def begin(self, request):
            raise MemoryError("no room for an index")

    async with running(tiny, drafter=Broken()) as engine:
        [result] = await collect(engine, ask(max_tokens=3))
    assert len(result.tokens) == 3
    assert "no room for an index" in result.receipt.warnings[0]
