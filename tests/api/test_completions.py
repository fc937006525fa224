"""`/v1/completions` through the official SDK, against a live server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agentspec.api.logprobs import IMPOSSIBLE
from agentspec.engines.base import Chunk, Receipt, TokenLogprob

if TYPE_CHECKING:
    import openai

    from tests.api.scripted_engine import ScriptedEngine


def test_whole_answer(sdk: openai.OpenAI, engine: ScriptedEngine) -> None:
    answer = sdk.completions.create(model="scripted-model", prompt="# add", max_tokens=100)
    assert answer.choices[0].text == engine.reply
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens == 5


def test_sixteen_tokens_unless_told(sdk: openai.OpenAI, engine: ScriptedEngine) -> None:
    answer = sdk.completions.create(model="scripted-model", prompt="# add")
    assert answer.choices[0].text == engine.reply[:16]
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", ["ab"]),
        (["ab", "c"], ["ab", "c"]),
        ([97, 98], [(97, 98)]),
        ([[97, 98], [99]], [(97, 98), (99,)]),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_every_kind_of_prompt(
    sdk: openai.OpenAI, engine: ScriptedEngine, prompt: object, expected: list[object], stream: bool
) -> None:
    answer = sdk.completions.create(model="scripted-model", prompt=prompt, n=2, max_tokens=99, stream=stream)
    texts: dict[int, str] = {}
    for part in answer if stream else [answer]:
        for choice in part.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    assert [request.prompt for request in engine.requests] == expected
    assert [texts[index] for index in sorted(texts)] == [engine.reply, engine.reply + "#1"] * len(expected)


def test_usage_of_several_prompts(sdk: openai.OpenAI, engine: ScriptedEngine) -> None:
    usage = sdk.completions.create(model="scripted-model", prompt=["ab", "cdef"], n=2, max_tokens=99).usage
    assert usage.prompt_tokens == 2 + 4
    assert usage.completion_tokens == 2 * (len(engine.reply) + len(engine.reply + "#1"))
    assert usage.prompt_tokens_details.cached_tokens == 1 + 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["ab", [97, 98]])
def test_echo(sdk: openai.OpenAI, engine: ScriptedEngine, prompt: object, stream: bool) -> None:
    answer = sdk.completions.create(model="scripted-model", prompt=prompt, echo=True, max_tokens=99, stream=stream)
    parts = answer if stream else [answer]
    assert "".join(part.choices[0].text for part in parts) == "ab" + engine.reply


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs(sdk: openai.OpenAI, stream: bool) -> None:
    answer = sdk.completions.create(model="scripted-model", prompt="x", logprobs=1, max_tokens=6, stream=stream)
    lists = [part.choices[0].logprobs for part in (answer if stream else [answer]) if part.choices[0].logprobs]
    assert [token for logprobs in lists for token in logprobs.tokens] == list("def ad")
    assert [offset for logprobs in lists for offset in logprobs.text_offset] == [0, 1, 2, 3, 4, 5]
    assert [value for logprobs in lists for value in logprobs.token_logprobs] == [-0.5] * 6
    assert lists[0].top_logprobs[0] == {"a": -1.0, "d": -0.5}


def test_impossible_tokens_and_parts_of_characters_are_valid_json(sdk: openai.OpenAI, engine: ScriptedEngine) -> None:
    token = TokenLogprob(1, "\ufffd", -0.1, ((2, "no", -float("inf")),))
    engine.script = lambda request: [
        Chunk(0, "é", (1,), (token,)),
        Chunk(0, finish_reason="stop", receipt=Receipt(completion_tokens=1)),
    ]
    answer = sdk.completions.create(model="scripted-model", prompt="x", logprobs=1)
    assert answer.choices[0].logprobs.top_logprobs[0]["no"] == IMPOSSIBLE
    chat = sdk.chat.completions.create(
        model="scripted-model", messages=[{"role": "user", "content": "x"}], logprobs=True, top_logprobs=1
    )
    assert chat.choices[0].logprobs.content[0].bytes is None


def test_usage_and_receipt_of_a_stream(sdk: openai.OpenAI) -> None:
    *others, last = sdk.completions.create(
        model="scripted-model",
        prompt=["a", "b"],
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"agentspec": {"receipt": True}},
    )
    assert all(chunk.choices for chunk in others)
    assert last.choices == []
    assert last.usage.completion_tokens == 32
    assert len(last.model_extra["agentspec"]["receipts"]) == 2


def test_one_failing_prompt_ends_the_call_and_frees_the_others(sdk: openai.OpenAI, engine: ScriptedEngine) -> None:
    import openai  # noqa: PLC0415

    from agentspec.errors import EngineError  # noqa: PLC0415

    engine.script = lambda request: [EngineError("boom")] if request.prompt == "b" else [30.0]
    with pytest.raises(openai.InternalServerError, match="boom"):
        sdk.completions.create(model="scripted-model", prompt=["a", "b", "c"])
    assert not engine.running
    assert len(engine.freed) == 3
