"""`/v1/responses` through the official SDK, against a live server."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import httpx
import openai
import pytest

from agentspec.api.response_store import KeptResponse, ResponseStore
from agentspec.api.schemas.responses import ResponseBody
from agentspec.engines.base import Chunk, Receipt
from agentspec.errors import EngineError, NotFoundError
from tests.api.scripted_engine import tool_call
from tests.api.test_disconnect import SLOW, assert_freed_since, wait_for
from tests.api.test_errors import assert_error

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.api.conftest import LiveServer
    from tests.api.scripted_engine import ScriptedEngine

MODEL = "scripted-model"
RESPONSES = "/v1/responses"
TOOLS = [
    {"type": "function", "name": "read", "description": "reads", "parameters": {"type": "object"}, "strict": False},
    {"type": "custom", "name": "apply_patch", "description": "patches"},
    {"type": "web_search"},
]


def tool_script(request: object) -> list[object]:
    """Reasoning, text, a function call and a call of a custom tool, the arguments in pieces."""
    return [
        Chunk(0, reasoning="think"),
        Chunk(0, "I look."),
        tool_call(0, "call-a", name="read", arguments=""),
        tool_call(0, arguments='{"path":'),
        tool_call(0, arguments=' "a.py"}'),
        tool_call(1, "call-b", name="apply_patch"),
        tool_call(1, arguments='{"input": "*** Begin'),
        tool_call(1, arguments='\\n+x"}'),
        Chunk(0, finish_reason="tool_calls", receipt=Receipt(prompt_tokens=9, cached_tokens=4, completion_tokens=7)),
    ]


def test_whole_response(sdk: openai.OpenAI, engine: ScriptedEngine) -> None:
    response = sdk.responses.create(model=MODEL, input="hello", instructions="be brief")
    assert response.output_text == engine.reply
    assert response.status == "completed"
    prompt = len("<system>be brief<user>hello")
    assert (response.usage.input_tokens, response.usage.output_tokens) == (prompt, len(engine.reply))
    assert response.usage.input_tokens_details.cached_tokens == prompt // 2
    assert response.usage.total_tokens == prompt + len(engine.reply)


def test_every_event_and_their_sum(sdk: openai.OpenAI, engine: ScriptedEngine) -> None:
    engine.script = tool_script
    whole = sdk.responses.create(model=MODEL, input="hello", tools=TOOLS)
    events = list(sdk.responses.create(model=MODEL, input="hello", tools=TOOLS, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type.removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
        "completed",
    ]
    done = [event for event in events if event.type == "response.output_item.done"]
    assert [event.output_index for event in done] == [0, 1, 2, 3]
    final = events[-1].response
    assert [event.item for event in done] == final.output
    for response in (whole, final):
        reasoning, message, function, custom = response.output
        assert reasoning.content[0].text == "think"
        assert message.content[0].text == "I look."
        assert (function.call_id, function.name, function.arguments) == ("call-a", "read", '{"path": "a.py"}')
        assert (custom.call_id, custom.name, custom.input) == ("call-b", "apply_patch", "*** Begin\n+x")
        assert response.usage.input_tokens_details.cached_tokens == 4
    added = {event.item.id for event in events if event.type == "response.output_item.added"}
    assert {event.item_id for event in events if hasattr(event, "item_id")} <= added


def test_incomplete_responses_say_why(sdk: openai.OpenAI) -> None:
    response = sdk.responses.create(model=MODEL, input="hello", max_output_tokens=3)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    *_, last = sdk.responses.create(model=MODEL, input="hello", max_output_tokens=3, stream=True)
    assert last.type == "response.incomplete"


def test_tools_reach_the_model_as_functions(sdk: openai.OpenAI, engine: ScriptedEngine) -> None:
    sdk.responses.create(model=MODEL, input="hello", tools=TOOLS)
    functions = [tool["function"] for tool in engine.requests[0].prompt.tools]
    assert [function["name"] for function in functions] == ["read", "apply_patch"]
    assert functions[1]["parameters"]["required"] == ["input"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_continues_another(sdk: openai.OpenAI, engine: ScriptedEngine, stream: bool) -> None:
    engine.script = tool_script
    answer = sdk.responses.create(model=MODEL, input="look", instructions="first", tools=TOOLS, stream=stream)
    first = list(answer)[-1].response if stream else answer
    engine.script = None
    second = sdk.responses.create(
        model=MODEL,
        previous_response_id=first.id,
        instructions="second",
        input=[{"type": "function_call_output", "call_id": "call-a", "output": "A = 1"}],
    )
    messages = engine.requests[-1].prompt.messages
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool"]
    assert messages[0]["content"] == "second", "instructions are not carried over"
    assert [call["id"] for call in messages[2]["tool_calls"]] == ["call-a", "call-b"]
    assert second.previous_response_id == first.id
    third = sdk.responses.create(model=MODEL, previous_response_id=second.id, input="and now")
    assert [m["role"] for m in engine.requests[-1].prompt.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    assert sdk.responses.retrieve(third.id).output_text == engine.reply
    sdk.responses.delete(third.id)
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve(third.id)


def test_unkept_and_unknown_responses(sdk: openai.OpenAI) -> None:
    unkept = sdk.responses.create(model=MODEL, input="hello", store=False)
    for response_id in (unkept.id, "resp_unknown"):
        with pytest.raises(openai.NotFoundError):
            sdk.responses.create(model=MODEL, input="hello", previous_response_id=response_id)


def test_background_responses(sdk: openai.OpenAI, engine: ScriptedEngine) -> None:
    engine.script = lambda request: [0.05, *tool_script(request)]
    response = sdk.responses.create(model=MODEL, input="hello", background=True)
    assert response.status == "in_progress"
    wait_for(lambda: sdk.responses.retrieve(response.id).status == "completed")
    assert sdk.responses.retrieve(response.id).output_text == "I look."
    engine.script = lambda request: [EngineError("boom")]
    response = sdk.responses.create(model=MODEL, input="hello", background=True)
    wait_for(lambda: sdk.responses.retrieve(response.id).status == "failed")
    assert sdk.responses.retrieve(response.id).error.message == "boom"


def test_cancel(sdk: openai.OpenAI, engine: ScriptedEngine) -> None:
    engine.script = lambda request: [Chunk(0, "a", (1,)), SLOW]
    response = sdk.responses.create(model=MODEL, input="hello", background=True)
    wait_for(lambda: engine.running)
    left = time.perf_counter()
    assert sdk.responses.cancel(response.id).status == "cancelled"
    assert_freed_since(left, engine)
    assert sdk.responses.retrieve(response.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError):
        sdk.responses.cancel(response.id)


def test_leaving_frees_the_slot(sdk: openai.OpenAI, engine: ScriptedEngine) -> None:
    engine.script = lambda request: [Chunk(0, "a", (1,)), SLOW]
    stream = sdk.responses.create(model=MODEL, input="hello", stream=True)
    next(iter(stream))
    left = time.perf_counter()
    stream.close()
    assert_freed_since(left, engine)


def test_failed_streams_end_with_a_failed_response(sdk: openai.OpenAI, engine: ScriptedEngine) -> None:
    engine.script = lambda request: [Chunk(0, "a", (1,)), RuntimeError("secret")]
    *_, last = sdk.responses.create(model=MODEL, input="hello", stream=True)
    assert last.type == "response.failed"
    assert last.response.error.code == "internal_error"
    assert "secret" not in last.response.error.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [{"role": "wizard", "content": "x"}]}, None),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input.0.content.0.type",
        ),
        ({"input": [{"type": "local_shell_call"}]}, "input.0.type"),
        ({"input": [5]}, None),
        ({"input": "x", "tool_choice": "required"}, "tool_choice"),
        ({"input": "x", "text": {"format": {"type": "json_schema"}}}, "response_format.json_schema"),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "x", "background": True, "stream": True}, "background"),
    ],
    ids=str,
)
def test_wrong_values(http: httpx.Client, fields: dict[str, object], param: str | None) -> None:
    assert_error(http.post(RESPONSES, json=fields), 400, param=param)
    assert http.post(RESPONSES, json={"input": "x"}).status_code == 200


def test_tenants_do_not_see_each_other(serve: Callable[..., LiveServer], tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alice\nbob\n")
    alice, bob = ({"authorization": f"Bearer {name}"} for name in ("alice", "bob"))
    with httpx.Client(base_url=serve(api_key_file=keys).url) as http:
        response_id = http.post(RESPONSES, json={"input": "secret"}, headers=alice).json()["id"]
        assert http.get(f"{RESPONSES}/{response_id}", headers=alice).status_code == 200
        assert_error(http.get(f"{RESPONSES}/{response_id}", headers=bob), 404)
        assert_error(http.delete(f"{RESPONSES}/{response_id}", headers=bob), 404)
        assert_error(http.post(f"{RESPONSES}/{response_id}/cancel", headers=bob), 404)
        follow = {"input": "x", "previous_response_id": response_id}
        assert_error(http.post(RESPONSES, json=follow, headers=bob), 404)


def test_the_oldest_responses_make_room() -> None:
    store = ResponseStore(max_characters=100)

    def keep(name: str, characters: int) -> None:
        body = ResponseBody(id=name, created_at=0, status="completed", model="m")
        store.keep(KeptResponse("owner", body, [], characters))

    for name in ("a", "b", "c"):
        keep(name, 30)
    store.find("a", "owner")
    keep("d", 30)
    assert [store.find(name, "owner").body.id for name in ("a", "c", "d")] == ["a", "c", "d"]
    with pytest.raises(NotFoundError):
        store.find("b", "owner")
    keep("e", 101)
    with pytest.raises(NotFoundError):
        store.find("e", "owner")
