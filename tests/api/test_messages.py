"""`/v1/messages` through the official Anthropic SDK, against a live server."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import anthropic
import pytest

from agentspec.engines.base import Chunk, Receipt
from agentspec.errors import EngineError, EngineUnavailableError
from tests.api.scripted_engine import tool_call
from tests.api.test_disconnect import SLOW, assert_freed_since

if TYPE_CHECKING:
    import httpx

    from tests.api.scripted_engine import ScriptedEngine

HELLO = [{"role": "user", "content": "hello"}]
MODEL = "scripted-model"


def tool_script(request: object) -> list[object]:
    """Reasoning, text, then two calls; the arguments of the first come in pieces."""
    return [
        Chunk(0, reasoning="think"),
        Chunk(0, "I look."),
        tool_call(0, "call-a", name="read", arguments=""),
        tool_call(0, arguments='{"path":'),
        tool_call(0, arguments=' "a.py"}'),
        tool_call(1, "call-b", name="list", arguments="{}"),
        Chunk(0, finish_reason="tool_calls", receipt=Receipt(prompt_tokens=9, cached_tokens=4, completion_tokens=7)),
    ]


def test_whole_message(claude: anthropic.Anthropic, engine: ScriptedEngine) -> None:
    message = claude.messages.create(model=MODEL, max_tokens=99, messages=HELLO, system="be brief")
    assert message.content[0].text == engine.reply
    assert message.stop_reason == "end_turn"
    prompt = len("<system>be brief<user>hello")
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens == prompt
    assert message.usage.cache_read_input_tokens == prompt // 2
    assert message.usage.output_tokens == len(engine.reply)


def test_streamed_message_is_the_whole_message(claude: anthropic.Anthropic, engine: ScriptedEngine) -> None:
    whole = claude.messages.create(model=MODEL, max_tokens=6, messages=HELLO)
    with claude.messages.stream(model=MODEL, max_tokens=6, messages=HELLO) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_message()
    assert streamed.content[0].text == whole.content[0].text == engine.reply[:6]
    assert streamed.stop_reason == whole.stop_reason == "max_tokens"
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"


def test_events_nest(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script = tool_script
    text = http.post("/v1/messages", json={"model": MODEL, "max_tokens": 9, "messages": HELLO, "stream": True}).text
    events = [block.split("\ndata: ") for block in text.strip().split("\n\n")]
    payloads = [json.loads(data) for _, data in events]
    assert [name.removeprefix("event: ") for name, _ in events] == [payload["type"] for payload in payloads]
    open_block = None
    seen = []
    for payload in payloads:
        if payload["type"] == "content_block_start":
            assert open_block is None
            open_block = payload["index"]
            seen.append(open_block)
        elif payload["type"] == "content_block_delta":
            assert payload["index"] == open_block
        elif payload["type"] == "content_block_stop":
            assert payload["index"] == open_block
            open_block = None
    assert open_block is None
    assert seen == [0, 1, 2, 3]


def test_arguments_that_are_no_object_are_not_lost(claude: anthropic.Anthropic, engine: ScriptedEngine) -> None:
    call = tool_call(0, "c", name="read", arguments='{"path": ')
    engine.script = lambda request: [call, Chunk(0, finish_reason="tool_calls")]
    message = claude.messages.create(model=MODEL, max_tokens=9, messages=HELLO)
    assert message.content[0].input == {"arguments": '{"path": '}


def test_conversations_are_translated(claude: anthropic.Anthropic, engine: ScriptedEngine) -> None:
    claude.messages.create(
        model=MODEL,
        max_tokens=9,
        stop_sequences=["END"],
        extra_body={"temperature": 0.5, "top_p": 0.9, "top_k": 7},
        metadata={"user_id": "someone"},
        system=[
            {"type": "text", "text": "x-anthropic-billing-header: cch=12345;"},
            {"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}},
        ],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "read it"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "text", "text": "reading"},
                    {"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "a.py"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "A = 1"}]},
                    {"type": "text", "text": "now edit"},
                ],
            },
        ],
    )
    request = engine.requests[0]
    call = {"id": "t1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a.py"}'}}
    assert request.prompt.messages == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "read it"},
        {"role": "assistant", "content": "reading", "tool_calls": [call]},
        {"role": "tool", "content": "A = 1", "tool_call_id": "t1"},
        {"role": "user", "content": "now edit"},
    ]
    sampling = request.sampling
    assert (sampling.stop, sampling.temperature, sampling.top_p, sampling.top_k) == (("END",), 0.5, 0.9, 7)
    assert sampling.max_tokens == 9


@pytest.mark.parametrize("stream", [False, True])
def test_errors_become_the_exceptions_of_the_sdk(
    claude: anthropic.Anthropic, engine: ScriptedEngine, http: httpx.Client, stream: bool
) -> None:
    def create(**changes: object) -> object:
        fields = {"model": MODEL, "max_tokens": 9, "messages": HELLO, "stream": stream} | changes
        answer = claude.messages.create(**fields)
        return list(answer) if stream else answer

    with pytest.raises(anthropic.NotFoundError, match="claude-9"):
        create(model="claude-9")
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    with pytest.raises(anthropic.BadRequestError, match="image"):
        create(messages=[{"role": "user", "content": [image]}])
    with pytest.raises(anthropic.BadRequestError, match="maximum context length"):
        create(max_tokens=5000)
    engine.script = lambda request: [EngineUnavailableError("restarting")]
    with pytest.raises(anthropic.APIStatusError, match="restarting") as caught:
        create()
    assert caught.value.status_code == 503
    body = http.post("/v1/messages", json={"model": MODEL}).json()
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert http.post("/v1/messages", content=b"{", headers={"content-type": "application/json"}).json()["error"]


def test_error_inside_a_stream(claude: anthropic.Anthropic, engine: ScriptedEngine) -> None:
    engine.script = lambda request: [Chunk(0, "a", (1,)), EngineError("the verify step failed")]
    stream = claude.messages.create(model=MODEL, max_tokens=9, messages=HELLO, stream=True)
    with pytest.raises(anthropic.APIError, match="the verify step failed"):
        list(stream)


def test_an_answer_without_any_token(claude: anthropic.Anthropic, engine: ScriptedEngine) -> None:
    engine.script = lambda request: [Chunk(0, finish_reason="stop", receipt=Receipt(completion_tokens=1))]
    assert claude.messages.create(model=MODEL, max_tokens=9, messages=HELLO).content[0].text == ""
    with claude.messages.stream(model=MODEL, max_tokens=9, messages=HELLO) as stream:
        assert stream.get_final_message().content[0].text == ""


def test_leaving_frees_the_slot(claude: anthropic.Anthropic, engine: ScriptedEngine) -> None:
    engine.script = lambda request: [Chunk(0, "a", (1,)), SLOW]
    stream = claude.messages.create(model=MODEL, max_tokens=9, messages=HELLO, stream=True)
    next(iter(stream))
    left = time.perf_counter()
    stream.close()
    assert_freed_since(left, engine)


def test_receipt(claude: anthropic.Anthropic) -> None:
    extra = {"agentspec": {"receipt": True}, "prediction": {"type": "content", "content": "def"}}
    whole = claude.messages.create(model=MODEL, max_tokens=9, messages=HELLO, extra_body=extra)
    assert whole.model_extra["agentspec"]["receipts"][0]["accepted"]["prediction"] > 0
    stream = claude.messages.create(model=MODEL, max_tokens=9, messages=HELLO, stream=True, extra_body=extra)
    [delta] = [event for event in stream if event.type == "message_delta"]
    assert delta.model_extra["agentspec"] == whole.model_extra["agentspec"]
