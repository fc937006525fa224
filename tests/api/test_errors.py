"""Errors: what clients get, through the SDK's exceptions and on the wire, and that the server goes on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import httpx
import openai
import pytest

from agentspec.engines.base import Chunk, Receipt
from agentspec.errors import EngineError, EngineUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.api.conftest import LiveServer
    from tests.api.scripted_engine import ScriptedEngine

HELLO = [{"role": "user", "content": "hello"}]
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
JSON = {"content-type": "application/json"}


def assert_error(response: httpx.Response, status: int, code: str | None = None, param: str | None = None) -> str:
    """Check the shape of an error answer; returns its message."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    if code is not None:
        assert error["code"] == code
    if param is not None:
        assert error["param"] == param
    return str(error["message"])


def assert_still_serving(http: httpx.Client) -> None:
    assert http.post(CHAT, json={"messages": HELLO}).status_code == 200


def test_unknown_model(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="gpt-9") as caught:
        sdk.chat.completions.create(model="gpt-9", messages=HELLO)
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        sdk.models.retrieve("gpt-9")


@pytest.mark.parametrize("stream", [False, True])
def test_overload(sdk: openai.OpenAI, engine: ScriptedEngine, stream: bool) -> None:
    engine.capacity = 0
    with pytest.raises(openai.RateLimitError) as caught:
        sdk.chat.completions.create(model="scripted-model", messages=HELLO, stream=stream)
    assert caught.value.response.headers["retry-after"] == "3"


@pytest.mark.parametrize("stream", [False, True])
def test_engine_unavailable(sdk: openai.OpenAI, engine: ScriptedEngine, stream: bool) -> None:
    engine.script = lambda request: [EngineUnavailableError("restarting", retry_after=7)]
    with pytest.raises(openai.InternalServerError, match="restarting") as caught:
        sdk.chat.completions.create(model="scripted-model", messages=HELLO, stream=stream)
    assert caught.value.status_code == 503
    assert caught.value.response.headers["retry-after"] == "7"


def test_error_inside_a_stream(sdk: openai.OpenAI, engine: ScriptedEngine, http: httpx.Client) -> None:
    engine.script = lambda request: [Chunk(0, "def"), EngineError("the verify step failed")]
    stream = sdk.chat.completions.create(model="scripted-model", messages=HELLO, stream=True)
    assert [next(stream).choices[0].delta.content for _ in range(2)] == ["", "def"]
    with pytest.raises(openai.APIError, match="the verify step failed"):
        next(stream)
    response = http.post(CHAT, json={"messages": HELLO, "stream": True})
    last = json.loads(response.text.strip().split("\n\n")[-1].removeprefix("data: "))
    assert last["error"]["code"] == "engine_error"
    assert "[DONE]" not in response.text
    engine.script = None
    assert_still_serving(http)


@pytest.mark.parametrize("stream", [False, True])
def test_a_choice_that_the_engine_gave_up_is_an_error(sdk: openai.OpenAI, engine: ScriptedEngine, stream: bool) -> None:
    engine.script = lambda request: [Chunk(0, finish_reason="abort", receipt=Receipt())]
    with pytest.raises(openai.InternalServerError, match="aborted") as caught:
        sdk.chat.completions.create(model="scripted-model", messages=HELLO, stream=stream)
    assert caught.value.status_code == 503


@pytest.mark.parametrize("stream", [False, True])
def test_unexpected_errors_show_nothing_of_their_inside(
    http: httpx.Client, engine: ScriptedEngine, stream: bool
) -> None:
    engine.script = lambda request: [RuntimeError("secret at /srv/internal")]
    response = http.post(CHAT, json={"messages": HELLO, "stream": stream}, headers={"x-request-id": "mine"})
    assert_error(response, 500, "internal_error")
    assert "secret" not in response.text
    assert response.headers["x-request-id"] == "mine"
    engine.script = None
    assert_still_serving(http)


def test_routes_and_methods(http: httpx.Client) -> None:
    assert "GET /v1/nothing" in assert_error(http.get("/v1/nothing"), 404, "not_found")
    response = http.get(CHAT)
    assert_error(response, 405, "method_not_allowed")
    assert response.headers["allow"] == "POST"
    assert http.put("/v1/repositories").headers["allow"] == "GET, POST"
    assert_error(http.put("/openapi.json"), 405)


def test_request_ids(http: httpx.Client) -> None:
    assert http.get("/health", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    assert http.get("/health", headers={"x-request-id": "a b\tc" * 90}).headers["x-request-id"].isalnum()
    assert http.get("/health").headers["x-request-id"] != http.get("/health").headers["x-request-id"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"content": "no role"}]}, "messages.0.role"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content.0.type"),
        ({"n": 0}, "n"),
        ({"n": -1}, "n"),
        ({"n": 10**6}, "n"),
        ({"n": "2"}, "n"),
        ({"n": True}, "n"),
        ({"n": 10**400}, "n"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"max_tokens": 2**63}, "max_tokens"),
        ({"seed": 2**64}, "seed"),
        ({"logit_bias": {"word": 1}}, "logit_bias.word"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": []}, "logit_bias"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": 5}, "stop"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"prediction": {"type": "content"}}, "prediction.content"),
        ({"prediction": "text"}, "prediction"),
        ({"tools": [{"type": "function"}]}, "tools.0.function.function"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "tools": []}}, "tool_choice"),
        ({"tool_choice": "some"}, "tool_choice"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": []}}}, None),
        ({"response_format": {"type": "regex"}}, "response_format.pattern"),
        ({"agentspec": {"receipt": "yes"}}, "agentspec.receipt"),
        ({"repository": "repo-of-nobody"}, "repository"),
    ],
    ids=str,
)
def test_wrong_values_name_their_field(http: httpx.Client, fields: dict[str, object], param: str) -> None:
    status = 404 if param == "repository" else 400
    message = assert_error(http.post(CHAT, json={"messages": HELLO} | fields), status, param=param)
    assert len(message) < 600
    assert_still_serving(http)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": {"text": "x"}}, "prompt"),
        ({"prompt": ["x"] * 65, "n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"best_of": 3}, "best_of"),
    ],
    ids=str,
)
def test_wrong_values_of_completions(http: httpx.Client, fields: dict[str, object], param: str) -> None:
    message = assert_error(http.post(COMPLETIONS, json={"prompt": "x"} | fields), 400)
    assert param in message
    assert_still_serving(http)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"5",
        b'"text"',
        b'{"messages": [}',
        b'\xef\xbb\xbf{"messages": []}',
        b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": Infinity}',
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": -Infinity}',
        b'{"messages": [{"role": "user", "content": "x"}], "top_k": ' + b"9" * 10_000 + b"}",
        b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    ],
    ids=range(16),
)
def test_malformed_bodies(http: httpx.Client, body: bytes) -> None:
    for path in (CHAT, COMPLETIONS, "/tokenize", "/detokenize", "/v1/repositories"):
        assert_error(http.post(path, content=body, headers=JSON), 400)
    assert_still_serving(http)


def test_numbers_beyond_any_float(http: httpx.Client) -> None:
    body = b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e999}'
    assert_error(http.post(CHAT, content=body, headers=JSON), 400, param="temperature")


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "application/json;charset=utf-16", "x"]
)
def test_other_content_types_are_refused(http: httpx.Client, content_type: str) -> None:
    body = json.dumps({"messages": HELLO})
    assert_error(http.post(CHAT, content=body, headers={"content-type": content_type}), 415)


def test_missing_content_type_is_refused(http: httpx.Client) -> None:
    assert "application/json" in assert_error(http.post(CHAT, content=json.dumps({"messages": HELLO})), 415)


def test_content_type_with_charset_is_fine(http: httpx.Client) -> None:
    body = json.dumps({"messages": HELLO})
    response = http.post(CHAT, content=body, headers={"content-type": "Application/JSON; charset=UTF-8"})
    assert response.status_code == 200


def test_ten_megabyte_prompt(sdk: openai.OpenAI, http: httpx.Client) -> None:
    with pytest.raises(openai.APIStatusError, match="larger than") as caught:
        sdk.chat.completions.create(model="scripted-model", messages=[{"role": "user", "content": "x" * 10_000_000}])
    assert caught.value.status_code == 413
    assert_still_serving(http)


def test_large_bodies_whose_length_is_not_announced(serve: Callable[..., LiveServer]) -> None:
    server = serve(max_body_bytes=1000)
    with httpx.Client(base_url=server.url) as http:
        response = http.post(CHAT, content=(b"x" * 100 for _ in range(50)), headers=JSON)
        assert_error(response, 413, "request_too_large")
        assert_still_serving(http)


def test_bodies_up_to_the_limit_pass(serve: Callable[..., LiveServer]) -> None:
    body = json.dumps({"messages": HELLO}).encode()
    server = serve(max_body_bytes=len(body))
    with httpx.Client(base_url=server.url) as http:
        assert http.post(CHAT, content=body, headers=JSON).status_code == 200
        assert_error(http.post(CHAT, content=body + b" ", headers=JSON), 413)
