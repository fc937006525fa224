"""One test for each trouble that self-hosted backends are known to give their clients, named by its symptom."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import httpx
import openai
import pytest
from starlette.middleware.base import BaseHTTPMiddleware

from agentspec.engines.base import Chunk, Receipt
from agentspec.engines.local.answers.parser import AnswerParser
from agentspec.engines.local.answers.tool_format import HERMES
from tests.api.scripted_engine import CONTEXT, FIRST_SPECIAL, tool_call
from tests.api.test_auth import ORIGIN, PREFLIGHT, bearer
from tests.api.test_chat import events
from tests.api.test_disconnect import SLOW, HttpProxy, Relay, assert_freed_since
from tests.api.test_errors import CHAT, COMPLETIONS, HELLO, assert_error
from tests.api.test_fim import PROMPTS
from tests.api.test_messages import tool_script

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import anthropic
    from starlette.middleware.base import RequestResponseEndpoint
    from starlette.requests import Request
    from starlette.responses import Response

    from tests.api.conftest import LiveServer
    from tests.api.scripted_engine import ScriptedEngine

MODEL = "scripted-model"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"


def deltas(http: httpx.Client, **fields: object) -> list[dict[str, object]]:
    """Deltas of a streamed chat answer."""
    chunks = events(http.post(CHAT, json={"messages": HELLO, "stream": True} | fields))[:-1]
    return [choice["delta"] for chunk in chunks for choice in chunk["choices"]]


def call_script(request: object) -> list[Chunk]:
    """Text, then two calls whose arguments come in pieces."""
    return [
        Chunk(0, "I look."),
        tool_call(0, "call-a", name="read", arguments=""),
        tool_call(0, arguments='{"path":'),
        tool_call(0, name=None, arguments=' "a.py"}'),
        tool_call(1, "call-b", name="list", arguments=""),
        tool_call(1, arguments="{}"),
        Chunk(0, finish_reason="tool_calls", receipt=Receipt(completion_tokens=9)),
    ]


def test_usage_chunk_with_empty_or_null_choices(sdk: openai.OpenAI, engine: ScriptedEngine) -> None:
    stream = sdk.chat.completions.create(
        model="scripted-model", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    *others, last = list(stream)
    assert all(chunk.choices and chunk.usage is None for chunk in others)
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == len(engine.reply)


def test_usage_chunk_unasked(sdk: openai.OpenAI) -> None:
    chunks = list(sdk.chat.completions.create(model="scripted-model", messages=HELLO, stream=True))
    assert all("usage" not in chunk.model_fields_set for chunk in chunks)
    assert all(chunk.choices for chunk in chunks)


def test_done_without_a_finish_chunk(http: httpx.Client) -> None:
    body = {"messages": HELLO, "n": 3, "stream": True, "stream_options": {"include_usage": True}}
    *chunks, done = events(http.post("/v1/chat/completions", json=body))
    assert done == "[DONE]"
    finished = [choice["index"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert sorted(finished) == [0, 1, 2]
    last_word = {choice["index"]: choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]}
    assert set(last_word.values()) == {"stop"}, "nothing follows the finish chunk of a choice"


def test_empty_tool_calls_on_text_deltas(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script = call_script
    texts = [delta for delta in deltas(http) if "content" in delta]
    assert texts
    assert all("tool_calls" not in delta for delta in texts)
    engine.script = None
    message = http.post(CHAT, json={"messages": HELLO}).json()["choices"][0]["message"]
    assert "tool_calls" not in message


@pytest.mark.parametrize("finish", ["stop", "length", "tool_calls"])
def test_streaming_and_non_streaming_finish_reasons_differ(
    http: httpx.Client, engine: ScriptedEngine, finish: str
) -> None:
    engine.script = lambda request: [*call_script(request)[:-1], Chunk(0, finish_reason=finish, receipt=Receipt())]
    whole = http.post(CHAT, json={"messages": HELLO}).json()["choices"][0]["finish_reason"]
    chunks = events(http.post(CHAT, json={"messages": HELLO, "stream": True}))[:-1]
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert reasons == [whole] == [finish]


def test_anthropic_json_deltas_that_do_not_reassemble(claude: anthropic.Anthropic, engine: ScriptedEngine) -> None:
    engine.script = tool_script
    tools = [{"name": "read", "description": "reads", "input_schema": {"type": "object"}}]
    whole = claude.messages.create(model=MODEL, max_tokens=9, messages=HELLO, tools=tools)
    with claude.messages.stream(model=MODEL, max_tokens=9, messages=HELLO, tools=tools) as stream:
        streamed = stream.get_final_message()
    for message in (whole, streamed):
        assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
        calls = message.content[2:]
        assert [(call.id, call.name, call.input) for call in calls] == [
            ("call-a", "read", {"path": "a.py"}),
            ("call-b", "list", {}),
        ]
        assert message.stop_reason == "tool_use"
        assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (5, 4)
    assert engine.requests[0].prompt.tools[0]["function"]["parameters"] == {"type": "object"}


def test_parallel_calls_sharing_an_index(http: httpx.Client, engine: ScriptedEngine) -> None:
    calls = "".join(f'<tool_call>\n{{"name": "read", "arguments": {{"n": {n}}}}}\n</tool_call>\n' for n in range(3))
    engine.script = lambda request: parsed(calls, pieces=7)
    found: dict[int, list[str]] = {}
    for delta in deltas(http):
        for call in delta.get("tool_calls", ()):
            entry = found.setdefault(call["index"], ["", ""])
            entry[0] += call.get("id", "")
            entry[1] += call["function"]["arguments"]
    assert sorted(found) == [0, 1, 2]
    assert [json.loads(arguments) for _, arguments in found.values()] == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert len({call_id for call_id, _ in found.values()}) == 3


def parsed(text: str, pieces: int, **how: bool) -> list[Chunk]:
    """Chunks of an answer as the embedded engine parses it, cut into pieces of some characters."""
    parser = AnswerParser([{"type": "function", "function": {"name": "read"}}], HERMES, **how)
    parts = [part for at in range(0, len(text), pieces) for part in parser.push(text[at : at + pieces])] + parser.end()
    chunks = [
        Chunk(0, part.text, reasoning=part.reasoning, tool_calls=(part.tool_call,) if part.tool_call else ())
        for part in parts
    ]
    return [*chunks, Chunk(0, finish_reason="tool_calls" if parser.calls else "stop", receipt=Receipt())]


def test_explicit_nulls_in_tool_deltas(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script = call_script
    calls = [call for delta in deltas(http) for call in delta.get("tool_calls", ())]
    assert len(calls) == 5
    for call in calls:
        assert None not in call.values()
        assert None not in call["function"].values()


@pytest.mark.parametrize("closed", ["</think>", ""])
def test_tool_call_swallowed_by_reasoning(http: httpx.Client, engine: ScriptedEngine, closed: str) -> None:
    text = f'<think>I should read.\n{closed}\n<tool_call>\n{{"name": "read", "arguments": {{}}}}\n</tool_call>'
    engine.script = lambda request: parsed(text, pieces=5, reasons=True)
    choice = http.post(CHAT, json={"messages": HELLO}).json()["choices"][0]
    assert choice["message"]["reasoning_content"] == "I should read."
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["read"]
    assert choice["message"]["content"] is None
    assert choice["finish_reason"] == "tool_calls"


def test_reasoning_only_turn(
    http: httpx.Client, sdk: openai.OpenAI, claude: anthropic.Anthropic, engine: ScriptedEngine
) -> None:
    engine.script = lambda request: [Chunk(0, reasoning="hm"), Chunk(0, finish_reason="length", receipt=Receipt())]
    message = sdk.chat.completions.create(model=MODEL, messages=HELLO).choices[0].message
    assert (message.content, message.model_extra["reasoning_content"]) == ("", "hm")
    assert [block.type for block in claude.messages.create(model=MODEL, max_tokens=9, messages=HELLO).content] == [
        "thinking"
    ]
    answer = sdk.responses.create(model=MODEL, input="hello", store=False)
    assert [item.type for item in answer.output] == ["reasoning"]
    assert answer.status == "incomplete"
    engine.script = None
    assistant = {"role": "assistant", "content": message.content, "reasoning_content": "hm"}
    assert http.post(CHAT, json={"messages": [*HELLO, assistant, *HELLO]}).status_code == 200, "and it can be replayed"
    assert engine.requests[-1].prompt.messages[1] == assistant


def test_flat_error_bodies(http: httpx.Client, engine: ScriptedEngine) -> None:
    for path, body in ((CHAT, {}), (COMPLETIONS, {}), (RESPONSES, {"input": 5}), ("/v1/edits", {}), ("/nowhere", {})):
        assert set(http.post(path, json=body).json()) == {"error"}
    assert set(http.post(MESSAGES, json={}).json()) == {"type", "error"}
    engine.script = lambda request: [Chunk(0, "x"), RuntimeError("cause")]
    for path, body in ((CHAT, {"messages": HELLO}), (COMPLETIONS, {"prompt": "x"}), ("/v1/edits", EDIT)):
        last = http.post(path, json=body | {"stream": True}).text.strip().split("\n\n")[-1]
        assert set(json.loads(last.removeprefix("data: "))["error"]) == {"message", "type", "param", "code"}


EDIT = {"content": "x\n", "instruction": "change it"}


def test_overflow_wording(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum context length is 4096 tokens") as caught:
        sdk.chat.completions.create(model="scripted-model", messages=HELLO, max_tokens=5000)
    assert caught.value.code == "context_length_exceeded"


def test_advertised_output_equal_to_context(http: httpx.Client) -> None:
    """What is advertised is what prompt and answer share; no limit of the answer alone promises all of it."""
    model = http.get("/v1/models").json()["data"][0]
    assert [name for name, value in model.items() if value == CONTEXT] == ["max_model_len", "context_length"]
    prompt = "x" * 100
    assert http.post(COMPLETIONS, json={"prompt": prompt, "max_tokens": CONTEXT - 100}).status_code == 200
    refused = http.post(COMPLETIONS, json={"prompt": prompt, "max_tokens": CONTEXT})
    assert_error(refused, 400, "context_length_exceeded")


def test_preflight_401(serve: Callable[..., LiveServer], tmp_path: Path) -> None:
    key_file = tmp_path / "keys"
    key_file.write_text("first-key\n")
    server = serve(api_key_file=key_file, cors_origins=(ORIGIN,))
    with httpx.Client(base_url=server.url) as http:
        preflight = http.options("/v1/chat/completions", headers=PREFLIGHT)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == ORIGIN
        assert "authorization" in preflight.headers["access-control-allow-headers"]
        refused = http.get("/v1/models", headers={"origin": ORIGIN})
        assert_error(refused, 401)
        assert refused.headers["access-control-allow-origin"] == ORIGIN, "a page may read why it was refused"
        allowed = http.get("/v1/models", headers={"origin": ORIGIN} | bearer("first-key"))
        assert allowed.status_code == 200
        assert "x-request-id" in allowed.headers["access-control-expose-headers"]
        other = http.get("/v1/models", headers={"origin": "http://evil.example"} | bearer("first-key"))
        assert "access-control-allow-origin" not in other.headers


def test_middleware_hiding_disconnects(serve: Callable[..., LiveServer]) -> None:
    async def dispatch(request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)

    server = serve(prepare=lambda app: app.add_middleware(BaseHTTPMiddleware, dispatch=dispatch))
    for stream in (False, True):
        server.engine.reset()
        server.engine.script = lambda request: [Chunk(0, "x"), SLOW]
        with httpx.Client(base_url=server.url) as http:
            body = {"prompt": "x", "stream": stream}
            request = http.build_request("POST", "/v1/completions", json=body, timeout=0.2)
            with pytest.raises(httpx.ReadTimeout):
                http.send(request)
            left = time.perf_counter()
        assert_freed_since(left, server.engine)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", [Relay, HttpProxy])
def test_proxies_not_propagating_disconnects(
    server: LiveServer, engine: ScriptedEngine, kind: type[Relay | HttpProxy], stream: bool
) -> None:
    engine.script = lambda request: [Chunk(0, "x"), SLOW]
    with kind(server.port) as proxy, httpx.Client(base_url=f"http://127.0.0.1:{proxy.port}") as http:
        timeout = 30 if stream else 0.3
        request = http.build_request("POST", COMPLETIONS, json={"prompt": "x", "stream": stream}, timeout=timeout)
        if stream:
            response = http.send(request, stream=True)
            next(response.iter_bytes())
            response.close()
        else:
            with pytest.raises(httpx.ReadTimeout):
                http.send(request)
        assert_freed_since(time.perf_counter(), engine)


def test_silence_before_the_first_token(serve: Callable[..., LiveServer]) -> None:
    server = serve(keepalive_seconds=0.05)
    engine = server.engine
    engine.script = lambda request: [0.3, Chunk(0, "def", (1, 2, 3)), 0.3, Chunk(0, finish_reason="stop")]
    with httpx.Client(base_url=server.url) as http:
        text = http.post(CHAT, json={"messages": HELLO, "stream": True}).text
    before, after = text.split("data: ", 1)
    assert before.count(": keepalive\n\n") >= 3
    assert after.count(": keepalive\n\n") >= 3
    assert text.endswith("data: [DONE]\n\n")


def test_idle_time_out_while_a_tool_call_is_buffered(serve: Callable[..., LiveServer]) -> None:
    """The engine works on tokens that are not shown yet; comments keep the connection from looking idle."""
    server = serve(keepalive_seconds=0.05)
    hidden = [step for _ in range(6) for step in (0.05, Chunk(0, "", (1,)))]
    server.engine.script = lambda request: [*hidden, *call_script(request)]
    with httpx.Client(base_url=server.url) as http:
        text = http.post(CHAT, json={"messages": HELLO, "stream": True}).text
    assert text.count(": keepalive\n\n") >= 3


def test_non_function_tools_refused(sdk: openai.OpenAI, http: httpx.Client, engine: ScriptedEngine) -> None:
    function = {"name": "read", "parameters": {"type": "object"}}
    others = [{"type": "web_search"}, {"type": "local_shell"}, {"type": "mcp", "server_label": "x"}]
    custom = {"type": "custom", "name": "apply_patch", "description": "patches"}
    sdk.responses.create(model=MODEL, input="x", tools=[{"type": "function", **function}, custom, *others], store=False)
    assert [tool["function"]["name"] for tool in engine.requests[-1].prompt.tools] == ["read", "apply_patch"]
    tools = [{"type": "function", "function": function}, *others]
    assert http.post(CHAT, json={"messages": HELLO, "tools": tools}).status_code == 200
    assert [tool["function"]["name"] for tool in engine.requests[-1].prompt.tools] == ["read"]


def test_replayed_items_without_ids(sdk: openai.OpenAI, engine: ScriptedEngine) -> None:
    sdk.responses.create(
        model=MODEL,
        instructions="be brief",
        input=[
            {"role": "developer", "content": "no comments"},
            {
                "role": "user",
                "content": [{"type": "input_text", "text": "read "}, {"type": "input_text", "text": "it"}],
            },
            {"type": "reasoning", "summary": [], "encrypted_content": "x"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "reading"}]},
            {"type": "function_call", "call_id": "c1", "name": "read", "arguments": "{}"},
            {"type": "custom_tool_call", "call_id": "c2", "name": "apply_patch", "input": 'say "x"'},
            {"type": "function_call_output", "call_id": "c1", "output": "A = 1"},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "done"}]},
        ],
    )

    def call(call_id: str, name: str, arguments: str) -> dict[str, object]:
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}

    assert engine.requests[0].prompt.messages == [
        {"role": "system", "content": "be brief\n\nno comments"},
        {"role": "user", "content": "read it"},
        {
            "role": "assistant",
            "content": "reading",
            "tool_calls": [call("c1", "read", "{}"), call("c2", "apply_patch", '{"input":"say \\"x\\""}')],
        },
        {"role": "tool", "content": "A = 1", "tool_call_id": "c1"},
        {"role": "tool", "content": "done", "tool_call_id": "c2"},
    ]


def test_instructions_plus_developer_message_breaking_a_template(sdk: openai.OpenAI, engine: ScriptedEngine) -> None:
    late = {"role": "system", "content": "be quick"}
    sdk.responses.create(
        model=MODEL,
        instructions="be brief",
        input=[
            {"role": "developer", "content": "be kind"},
            *HELLO,
            {"role": "assistant", "content": "hi"},
            late,
            *HELLO,
        ],
    )
    messages = engine.requests[0].prompt.messages
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert messages[0]["content"] == "be brief\n\nbe kind"
    assert messages[3]["content"] == "be quick\n\nhello"


def test_a_nonce_line_destroying_the_prefix_cache(
    http: httpx.Client, claude: anthropic.Anthropic, engine: ScriptedEngine
) -> None:
    rules = "You are an agent.\n{}\nKeep to the rules."
    for line in ("Request-ID: 1", "Request-ID: 2"):
        system = {"role": "system", "content": rules.format(line)}
        assert http.post(CHAT, json={"messages": [system, *HELLO]}).status_code == 200
    first, second = (request.prompt.messages for request in engine.requests)
    assert first[0] == second[0] == {"role": "system", "content": "You are an agent.\nKeep to the rules."}
    assert first[1]["content"] == "hello\n\nRequest-ID: 1", "and nothing is lost"
    header = "x-anthropic-billing-header: cc_version=2; cch={};"
    for nonce in (3, 4):
        system = [{"type": "text", "text": header.format(nonce)}, {"type": "text", "text": "You are an agent."}]
        claude.messages.create(model=MODEL, max_tokens=9, messages=HELLO, system=system)
    assert engine.requests[2].prompt == engine.requests[3].prompt


def test_broken_token_counting(claude: anthropic.Anthropic) -> None:
    counted = claude.messages.count_tokens(model=MODEL, messages=HELLO, system="be brief")
    assert counted.input_tokens == len("<system>be brief<user>hello")


def test_fim_prefix_lost_or_cursor_markers_leaking(qwen_http: httpx.Client, qwen: LiveServer) -> None:
    for suffix in ("right", None):
        qwen_http.post(COMPLETIONS, json={"prompt": PROMPTS["qwen"], "suffix": suffix})
        request = qwen.engine.requests[-1]
        assert request.prompt == PROMPTS["qwen"]
        assert FIRST_SPECIAL in request.sampling.stop_token_ids
    qwen_http.post(COMPLETIONS, json={"prompt": "plain"})
    assert qwen.engine.requests[-1].sampling.stop_token_ids == ()


def test_suffix_unsupported(sdk: openai.OpenAI, http: httpx.Client) -> None:
    body = {"prompt": "def f(", "suffix": "): pass"}
    message = assert_error(http.post(COMPLETIONS, json=body), 400, param="suffix")
    assert "scripted-model" in message
    assert_error(http.post("/infill", json={"input_prefix": "a", "input_suffix": "b"}), 400)
    assert_error(http.post("/v1/fim/completions", json={"prompt": "a", "suffix": "b"}), 400)
    assert http.post(COMPLETIONS, json={"prompt": "x", "suffix": ""}).status_code == 200
    assert http.post(COMPLETIONS, json={"prompt": "x", "suffix": None}).status_code == 200


@pytest.mark.parametrize("base", ["", "/", "/v1", "/v1/", "//v1", "/v1/v1", "/v1//v1/"])
def test_base_url_variants(server: LiveServer, base: str) -> None:
    with openai.OpenAI(base_url=server.url + base, api_key="none", max_retries=0) as sdk:
        assert sdk.chat.completions.create(model="scripted-model", messages=HELLO).choices
        assert sdk.completions.create(model="scripted-model", prompt="x").choices
        assert sdk.models.list().data


def test_infill_missing(qwen_http: httpx.Client, qwen: LiveServer) -> None:
    body = {
        "input_prefix": "left",
        "input_suffix": "right",
        "prompt": "begun",
        "input_extra": [{"filename": "b.py", "text": "B = 1"}, {"filename": "c.py", "text": "C = 2"}],
        "filename": "a.py",
        "n_predict": 99,
        "samplers": ["top_k", "infill"],
        "cache_prompt": True,
        "t_max_predict_ms": 500,
    }
    answer = qwen_http.post("/infill", json=body).json()
    request = qwen.engine.requests[-1]
    assert request.prompt == (
        "<|file_sep|>b.py\nB = 1\n<|file_sep|>c.py\nC = 2\n<|file_sep|>a.py\n" + PROMPTS["qwen"] + "begun"
    )
    assert (request.sampling.temperature, request.sampling.max_tokens) == (0.0, 99)
    assert answer["content"] == qwen.engine.reply
    assert (answer["stop"], answer["stop_type"], answer["model"]) == (True, "eos", "scripted-model")
    assert answer["tokens_predicted"] == answer["timings"]["predicted_n"] == len(qwen.engine.reply)
    assert answer["timings"]["prompt_n"] == answer["tokens_evaluated"] - answer["tokens_cached"]
