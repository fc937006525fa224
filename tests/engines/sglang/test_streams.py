"""The client and the streams against recorded shapes of SGLang's answers."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest

from agentspec.config import Settings
from agentspec.engines.base import ChatPrompt, Chunk, OutputFormat, SamplingParams, ToolChoice
from agentspec.engines.sglang.chat_stream import UNKNOWN_TOKEN, ChatStream
from agentspec.engines.sglang.choice import Choice
from agentspec.engines.sglang.client import SGLangClient
from agentspec.engines.sglang.engine import SGLangEngine
from agentspec.engines.sglang.generate_stream import GenerateStream
from agentspec.engines.sglang.sampling import chat_format_params, format_params, sampling_params, tool_params
from agentspec.errors import (
    AgentspecError,
    ContextOverflowError,
    EngineError,
    EngineUnavailableError,
    InvalidRequestError,
    OverloadedError,
)

RECEIPT = {
    "completion_tokens": 3,
    "verify_steps": 2,
    "drafted": {"repository": 4},
    "accepted": {"repository": 1},
    "eagle_skipped": 0,
    "draft_seconds": 0.1,
    "verify_seconds": 0.2,
    "speculation": True,
    "warnings": ["w"],
}


def client_of(answer: Callable[[httpx.Request], httpx.Response]) -> SGLangClient:
    return SGLangClient("http://sglang", httpx.MockTransport(answer))


def events(*items: Any) -> httpx.Response:
    lines = [f"data: {item if isinstance(item, str) else json.dumps(item)}\n\n" for item in items]
    return httpx.Response(200, text="".join(lines), headers={"content-type": "text/event-stream"})


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (400, {"object": "error", "message": "bad regex", "type": "BadRequest", "code": 400}, InvalidRequestError),
        (
            400,
            {"error": {"message": "Input length (9 tokens) exceeds the maximum allowed length"}},
            ContextOverflowError,
        ),
        (400, {"message": "the model's maximum context length of 8 tokens"}, ContextOverflowError),
        (503, {"message": "The request queue is full."}, OverloadedError),
        (503, {"message": "shutting down"}, EngineUnavailableError),
        (500, {"message": "boom"}, EngineError),
        (502, "not json", EngineError),
        (500, "", EngineError),
    ],
)
async def test_errors_are_told_apart(status: int, body: Any, expected: type[AgentspecError]) -> None:
    text = body if isinstance(body, str) else json.dumps(body)
    client = client_of(lambda _: httpx.Response(status, text=text))
    with pytest.raises(AgentspecError) as caught:
        await client.post("/generate", {})
    assert type(caught.value) is expected
    with pytest.raises(AgentspecError) as caught:
        [item async for item in client.stream("/generate", {})]
    assert type(caught.value) is expected
    if expected is OverloadedError:
        assert caught.value.retry_after > 0


async def test_a_server_that_is_gone_is_unavailable() -> None:
    def refuse(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    client = client_of(refuse)
    with pytest.raises(EngineUnavailableError, match="cannot be reached"):
        await client.get("/server_info")
    await client.abort("x")
    assert await client.receipt("x") is None


async def test_an_error_inside_a_stream_is_raised() -> None:
    client = client_of(lambda _: events({"text": "a"}, {"error": {"message": "died", "code": 500}}))
    stream = aiter(client.stream("/generate", {}))
    assert await anext(stream) == {"text": "a"}
    with pytest.raises(EngineError, match="died"):
        await anext(stream)


def generated(text: str, tokens: list[int], finish: Any = None, **meta: Any) -> dict[str, Any]:
    info = {"prompt_tokens": 5, "cached_tokens": 2, "completion_tokens": len(tokens), "finish_reason": finish}
    return {"text": text, "output_ids": tokens, "meta_info": {"id": "x", **info, **meta}}


async def run(stream: GenerateStream | ChatStream) -> list[Chunk]:
    return [chunk async for chunk in stream.chunks()]


def generate(answer: httpx.Response, sampling: SamplingParams, bodies: list[Any] | None = None) -> GenerateStream:
    def respond(request: httpx.Request) -> httpx.Response:
        if bodies is not None:
            bodies.append(json.loads(request.content))
        return answer

    params = sampling_params(sampling, False)
    choice = Choice("x", 0, sampling, params, seed=7, custom_params={"agentspec": {}}, warnings=("mine",))
    return GenerateStream(client_of(respond), choice, [1, 2])


async def test_cumulative_events_become_differences() -> None:
    bodies: list[Any] = []
    answer = events(
        generated("He", [1]),
        generated("Hello", [1, 2]),
        generated("Hello", [1, 2, 3], {"type": "stop", "matched": 3}, agentspec=[RECEIPT], queue_time=0.5),
        "[DONE]",
    )
    chunks = await run(generate(answer, SamplingParams(temperature=0, max_tokens=9, logit_bias={5: 1.0}), bodies))
    assert [chunk.text for chunk in chunks] == ["He", "llo", ""]
    assert [chunk.token_ids for chunk in chunks] == [(1,), (2,), (3,)]
    assert chunks[-1].finish_reason == "stop"
    receipt = chunks[-1].receipt
    assert receipt is not None
    assert (receipt.prompt_tokens, receipt.cached_tokens, receipt.completion_tokens) == (5, 2, 3)
    assert (receipt.verify_steps, receipt.drafted, receipt.queue_seconds) == (2, {"repository": 4}, 0.5)
    assert receipt.warnings == ("mine", "w")
    params = bodies[0]["sampling_params"]
    assert (params["max_new_tokens"], params["top_k"], params["sampling_seed"]) == (9, -1, 7)
    assert params["logit_bias"] == {"5": 1.0}
    assert bodies[0]["input_ids"] == [1, 2]


async def test_no_part_of_a_stop_string_is_sent_before_its_time() -> None:
    sampling = SamplingParams(stop=("END",))
    cut = events(
        generated("a E", [1]), generated("a EN", [1, 2]), generated("a ", [1, 2, 3], {"type": "stop", "matched": "END"})
    )
    chunks = await run(generate(cut, sampling))
    assert [chunk.text for chunk in chunks] == ["a ", "", ""]
    assert [chunk.stop_sequence for chunk in chunks] == [None, None, "END"]
    kept = events(generated("a EN", [1, 2]), generated("a ENx", [1, 2, 3], {"type": "length", "length": 3}))
    assert "".join(chunk.text for chunk in await run(generate(kept, sampling))) == "a ENx"


async def test_logprobs_come_with_their_tokens() -> None:
    first = {"output_token_logprobs": [[-0.5, 1, "a"]], "output_top_logprobs": [[[-0.5, 1, "a"], [-1.0, 9, "z"]]]}
    second = {
        "output_token_logprobs": [*first["output_token_logprobs"], [-0.25, 2, "b"]],
        "output_top_logprobs": [*first["output_top_logprobs"], [[-0.25, 2, "b"]]],
    }
    answer = events(generated("a", [1], **first), generated("ab", [1, 2], {"type": "length"}, **second))
    chunks = await run(generate(answer, SamplingParams(logprobs=2)))
    rows = [row for chunk in chunks for row in chunk.logprobs or ()]
    assert [(row.token_id, row.text, row.logprob) for row in rows] == [(1, "a", -0.5), (2, "b", -0.25)]
    assert rows[0].top == ((1, "a", -0.5), (9, "z", -1.0))


async def test_an_abort_for_lack_of_room_is_an_error() -> None:
    reason = {"type": "abort", "message": "The request queue is full.", "status_code": 503}
    with pytest.raises(OverloadedError):
        await run(generate(events(generated("", [], reason)), SamplingParams()))


async def test_an_abort_that_was_asked_for_is_an_end() -> None:
    chunks = await run(generate(events(generated("a", [1], {"type": "abort"})), SamplingParams()))
    assert chunks[-1].finish_reason == "abort"


def piece(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}]}


async def test_chat_streams_carry_text_reasoning_and_tool_calls() -> None:
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}
    logprobs = {"content": [{"token": "a", "logprob": -0.5, "top_logprobs": [{"token": "b", "logprob": -1.0}]}]}
    with_logprobs = piece(content="a")
    with_logprobs["choices"][0]["logprobs"] = logprobs
    usage = {"prompt_tokens": 4, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 1}}
    answer = events(
        piece(role="assistant", content=""),
        piece(reasoning_content="hm"),
        with_logprobs,
        piece(content="b ST"),
        piece(tool_calls=[call]),
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls", "matched_stop": "STOP"}]},
        {"choices": [], "usage": usage},
        "[DONE]",
    )

    def respond(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=RECEIPT) if request.url.path == "/agentspec/receipts/x" else answer

    prompt = ChatPrompt([{"role": "user", "content": "hi"}], tools=[{"type": "function"}])
    stream = ChatStream(client_of(respond), Choice("x", 1, SamplingParams(stop=("STOP",), logprobs=1), {}), prompt)
    chunks = await run(stream)
    assert "".join(chunk.text for chunk in chunks) == "ab "
    assert "".join(chunk.reasoning for chunk in chunks) == "hm"
    assert [item for chunk in chunks for item in chunk.tool_calls] == [call]
    assert next(row for chunk in chunks for row in chunk.logprobs or ()).top == ((UNKNOWN_TOKEN, "b", -1.0),)
    assert all(chunk.index == 1 for chunk in chunks)
    assert chunks[-1].finish_reason == "tool_calls"
    assert chunks[-1].stop_sequence == "STOP"
    receipt = chunks[-1].receipt
    assert receipt is not None
    assert (receipt.prompt_tokens, receipt.cached_tokens, receipt.verify_steps) == (4, 1, 2)


def test_min_p_and_seeds_exclude_each_other() -> None:
    assert sampling_params(SamplingParams(min_p=0.1), False)["min_p"] == 0.1
    with pytest.raises(InvalidRequestError, match="min_p"):
        sampling_params(SamplingParams(min_p=0.1), True)


def test_forms_and_tools_in_the_words_of_sglang() -> None:
    schema = OutputFormat("json_schema", '{"type": "integer"}')
    assert format_params(None) == chat_format_params(None) == {}
    assert format_params(schema) == {"json_schema": '{"type": "integer"}'}
    assert format_params(OutputFormat("json_object")) == {"json_schema": '{"type": "object"}'}
    assert format_params(OutputFormat("regex", "a+")) == chat_format_params(OutputFormat("regex", "a+"))
    assert chat_format_params(OutputFormat("regex", "a+")) == {"regex": "a+"}
    assert chat_format_params(OutputFormat("json_object")) == {"response_format": {"type": "json_object"}}
    assert chat_format_params(schema)["response_format"]["json_schema"]["schema"] == {"type": "integer"}
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert tool_params([], ToolChoice()) == {}
    assert tool_params(tools, ToolChoice())["tool_choice"] == "auto"
    assert tool_params(tools, ToolChoice(required=True, parallel=False)) == {
        "tools": tools,
        "tool_choice": "required",
        "parallel_tool_calls": False,
    }
    named = tool_params(tools, ToolChoice(required=True, names=("f",)))["tool_choice"]
    assert named == {"type": "function", "function": {"name": "f"}}
    assert tool_params(tools, ToolChoice(names=("f",)))["tool_choice"] == "auto"


async def test_a_prescribed_form_is_sent_along() -> None:
    bodies: list[Any] = []

    def respond(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return events(generated("1", [1], {"type": "stop"}))

    choice = Choice("x", 0, SamplingParams(), {}, output_format=OutputFormat("regex", "[0-9]"))
    await run(GenerateStream(client_of(respond), choice, "one:"))
    assert bodies[0]["sampling_params"]["regex"] == "[0-9]"


def words(tail: list[str], bodies: list[Any]) -> SGLangEngine:
    """An engine whose server renders every chat as `tail`; a token is the place of its word there."""

    def respond(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        if request.url.path == "/detokenize":
            return httpx.Response(200, json={"text": "".join(tail[token] for token in bodies[-1]["tokens"])})
        chat = list(range(len(tail)))
        return httpx.Response(200, json={"tokens": chat if "messages" in bodies[-1] else [77]})

    engine = SGLangEngine(Settings.load(sglang={"url": "http://sglang"}), "m")
    engine._client = client_of(respond)
    return engine


BEGUN = ChatPrompt([{"role": "user", "content": "hi"}], answer_prefix="```\n")


@pytest.mark.parametrize(
    ("tail", "kept", "begun"),
    [
        (["hi", "<|assistant|>", "\n"], 3, "```\n"),
        (["hi", "<|assistant|>", "\n", "<think>", "\n"], 4, "\n\n</think>\n\n```\n"),
        (["hi", "<|assistant|>", "<", "think", ">\n"], 5, "\n</think>\n\n```\n"),
        (["hi", "<|assistant|>", "[THINK]"], 3, "\n\n[/THINK]\n\n```\n"),
        (["<think>", "</think>", "\n\n"], 3, "```\n"),
    ],
)
async def test_an_answer_that_is_begun_goes_on_behind_its_tokens(tail: list[str], kept: int, begun: str) -> None:
    bodies: list[Any] = []
    engine = words(tail, bodies)
    assert await engine.tokenize(BEGUN) == [*range(kept), 77]
    assert bodies[-1] == {"prompt": begun, "add_special_tokens": False}
    assert await engine.tokenize(replace(BEGUN, answer_prefix="")) == list(range(len(tail)))


async def test_an_answer_that_the_model_must_open_is_not_begun() -> None:
    engine = words(["hi"], [])
    engine._reasoning_parser = "gpt-oss"
    with pytest.raises(InvalidRequestError, match="'gpt-oss' open answers by themselves"):
        await engine.tokenize(BEGUN)
    assert await engine.tokenize(replace(BEGUN, answer_prefix="")) == [0]
