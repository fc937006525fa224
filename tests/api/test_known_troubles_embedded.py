"""The embedded engine behind the official SDKs: tools, prescribed forms, and troubles that drafts give elsewhere."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import anthropic
import httpx
import openai
import pytest
from pydantic import BaseModel, Field

from agentspec.api.app import create_app
from agentspec.api.repositories import RepositoryRegistry
from agentspec.config import Settings
from agentspec.engines.local.engine import LocalEngine
from agentspec.engines.local.tokenizer import Tokenizer
from tests.api.conftest import LiveServer
from tests.api.scripted_indexer import ScriptedIndexer
from tests.api.test_errors import CHAT, COMPLETIONS, HELLO, assert_error
from tests.engines.local.tiny_target import CHAT_TEMPLATE, load_tiny, make_folder

if TYPE_CHECKING:
    from collections.abc import Iterator


class Place(BaseModel):
    """What the model is made to write."""

    kind: Literal["file", "folder"]
    lines: int = Field(ge=0, le=99)


SCHEMA = Place.model_json_schema()
LOOK = {"name": "look", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": LOOK}]
SEEDED = {"seed": 7, "temperature": 0.7}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    target = load_tiny(make_folder(tmp_path_factory.mktemp("embedded") / "model"))
    wrapped = target.tokenizer.wrapped
    wrapped.chat_template = f"{{# <tool_call> #}}{CHAT_TEMPLATE}"
    target = replace(target, tokenizer=Tokenizer(wrapped))
    settings = Settings.load(engine={"kv_tokens": 16_000, "max_running": 4})
    registry = RepositoryRegistry((), ScriptedIndexer())
    engine = LocalEngine(settings, repositories=registry, load=lambda _: target)
    with LiveServer(create_app(engine, settings, registry), engine, None, registry) as server:
        yield server


@pytest.fixture(scope="module")
def http(live: LiveServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=live.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def sdk(live: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def claude(live: LiveServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=live.url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


def both(http: httpx.Client, path: str, body: dict[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """The same request with drafts and without; the drafts must have been put to the test."""
    answers = []
    for speculation in (False, True):
        options = {"agentspec": {"receipt": True, "speculation": speculation}}
        if answers:
            message = answers[0]["choices"][0]
            text = message["text"] if "text" in message else message["message"]["content"]
            options["prediction"] = {"type": "content", "content": text}
        response = http.post(path, json=body | options)
        assert response.status_code == 200, response.text
        answers.append(response.json())
    assert sum(answers[1]["agentspec"]["receipts"][0]["accepted"].values()) > 0
    return answers[0], answers[1]


def test_speculation_with_json_schema_crashing(http: httpx.Client) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}}
    body = {"messages": HELLO, "response_format": form, "max_tokens": 100, **SEEDED}
    plain, drafted = both(http, CHAT, body)
    assert plain["choices"] == drafted["choices"]
    assert Place.model_validate_json(drafted["choices"][0]["message"]["content"])


def test_logprobs_under_speculation_crashing(http: httpx.Client) -> None:
    body = {"prompt": "def main():", "logprobs": 3, "max_tokens": 24, "ignore_eos": True, **SEEDED}
    plain, drafted = (answer["choices"][0] for answer in both(http, COMPLETIONS, body))
    assert plain["text"] == drafted["text"]
    assert plain["logprobs"]["tokens"] == drafted["logprobs"]["tokens"]
    assert plain["logprobs"]["token_logprobs"] == pytest.approx(drafted["logprobs"]["token_logprobs"], abs=1e-4)


def test_a_broken_schema_is_the_callers_error(http: httpx.Client) -> None:
    for schema in ({"type": "nonsense"}, {"$ref": "#/nowhere"}, {"enum": []}, False):
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        refused = http.post(CHAT, json={"messages": HELLO, "response_format": form})
        assert_error(refused, 400, param="response_format")
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "nonsense"}}}]
    body = {"messages": HELLO, "tools": tools, "tool_choice": "required"}
    assert_error(http.post(CHAT, json=body), 400)
    assert http.post(CHAT, json={"messages": HELLO, "max_tokens": 4}).status_code == 200


def test_a_form_is_parsed_by_the_sdk(sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.parse(model="tiny", messages=HELLO, response_format=Place, max_tokens=100, **SEEDED)
    assert isinstance(answer.choices[0].message.parsed, Place)
    response = sdk.responses.parse(
        model="tiny", input="hello", text_format=Place, max_output_tokens=100, temperature=0.7
    )
    assert isinstance(response.output_parsed, Place)
    assert response.text.format.type == "json_schema"
    written = sdk.completions.create(
        model="tiny",
        prompt="x",
        max_tokens=20,
        extra_body={"response_format": {"type": "regex", "pattern": "[0-9]{3}"}},
    )
    assert written.choices[0].text.isdigit()


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look"}}])
def test_calls_agree_between_stream_and_whole(sdk: openai.OpenAI, choice: object) -> None:
    arguments = {"model": "tiny", "messages": HELLO, "tools": TOOLS, "tool_choice": choice, "max_tokens": 120}
    arguments |= {"parallel_tool_calls": False, **SEEDED}
    whole = sdk.chat.completions.create(**arguments).choices[0]
    with sdk.chat.completions.stream(**arguments) as stream:
        streamed = stream.get_final_completion().choices[0]
    for answer in (whole, streamed):
        assert answer.finish_reason == "tool_calls"
        assert not answer.message.content
        [call] = answer.message.tool_calls
        assert call.function.name == "look"
        assert Place.model_validate_json(call.function.arguments)
    assert whole.message.tool_calls[0].function.arguments == streamed.message.tool_calls[0].function.arguments
    history = [*HELLO, whole.message.to_dict(), {"role": "tool", "tool_call_id": whole.message.tool_calls[0].id}]
    history[-1]["content"] = "a file"
    assert sdk.chat.completions.create(model="tiny", messages=history, tools=TOOLS, max_tokens=4).choices


def test_anthropic_calls_and_stop_sequences(claude: anthropic.Anthropic) -> None:
    tools = [{"name": "look", "description": "looks", "input_schema": SCHEMA}]
    arguments = {
        "model": "tiny",
        "max_tokens": 120,
        "messages": HELLO,
        "tools": tools,
        "extra_body": {"temperature": 0},
    }
    arguments["tool_choice"] = {"type": "any", "disable_parallel_tool_use": True}
    whole = claude.messages.create(**arguments)
    with claude.messages.stream(**arguments) as stream:
        streamed = stream.get_final_message()
    for message in (whole, streamed):
        assert [block.type for block in message.content] == ["tool_use"]
        assert Place.model_validate(message.content[0].input)
        assert message.stop_reason == "tool_use"
    greedy = {"temperature": 0}
    plain = claude.messages.create(model="tiny", max_tokens=40, messages=HELLO, extra_body=greedy)
    text = plain.content[0].text
    stop = text[len(text) // 2 :][:4]
    stopped = claude.messages.create(
        model="tiny", max_tokens=40, messages=HELLO, extra_body=greedy, stop_sequences=["no such text", stop]
    )
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", stop)
    assert stopped.content[0].text == text[: text.index(stop)]
    with claude.messages.stream(
        model="tiny", max_tokens=40, messages=HELLO, extra_body=greedy, stop_sequences=[stop]
    ) as stream:
        final = stream.get_final_message()
    assert (final.stop_reason, final.stop_sequence) == ("stop_sequence", stop)


def test_function_and_custom_tools_of_responses(sdk: openai.OpenAI) -> None:
    arguments = {"model": "tiny", "input": "hello", "temperature": 0, "max_output_tokens": 120, "store": False}
    function = {"type": "function", **LOOK, "strict": True}
    answer = sdk.responses.create(**arguments, tools=[function], tool_choice="required", parallel_tool_calls=False)
    [call] = answer.output
    assert (call.type, call.name, answer.status) == ("function_call", "look", "completed")
    assert Place.model_validate_json(call.arguments)
    pattern = "exactly this"
    custom = {"type": "custom", "name": "note", "description": pattern}
    choice = {"type": "custom", "name": "note"}
    events = list(sdk.responses.create(**arguments, tools=[custom], tool_choice=choice, stream=True))
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [(item.type, item.name) for item in done] == [("custom_tool_call", "note")]
    written = "".join(event.delta for event in events if event.type == "response.custom_tool_call_input.delta")
    assert done[0].input == written
    assert json.dumps(written)


def test_custom_tools_of_chat_completions(sdk: openai.OpenAI) -> None:
    custom = {"type": "custom", "custom": {"name": "note", "description": "exactly this"}}
    asked = {"model": "tiny", "messages": HELLO, "temperature": 0, "max_tokens": 120, "tools": [custom]}
    choice = {"type": "custom", "custom": {"name": "note"}}
    [call] = sdk.chat.completions.create(**asked, tool_choice=choice).choices[0].message.tool_calls
    assert (call.type, call.custom.name) == ("custom", "note")
    chunks = sdk.chat.completions.create(**asked, tool_choice=choice, stream=True)
    deltas = [delta for chunk in chunks for delta in chunk.choices[0].delta.tool_calls or ()]
    shown = [delta.model_dump(exclude_unset=True)["custom"] for delta in deltas]
    assert "".join(custom["input"] for custom in shown) == call.custom.input
