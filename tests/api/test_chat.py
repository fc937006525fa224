"""`/v1/chat/completions` through the official SDK, against a live server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from agentspec.engines.base import ChatPrompt, Chunk, Receipt
from tests.api.scripted_engine import tool_call

if TYPE_CHECKING:
    import httpx
    import openai

    from tests.api.scripted_engine import ScriptedEngine

HELLO = [{"role": "user", "content": "hello"}]


def events(response: httpx.Response) -> list[dict[str, object] | str]:
    """Payloads of a stream; `[DONE]` stays text."""
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [block.removeprefix("data: ") for block in response.text.split("\n\n") if block]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def test_whole_answer(sdk: openai.OpenAI, engine: ScriptedEngine) -> None:
    answer = sdk.chat.completions.create(model="scripted-model", messages=HELLO)
    assert answer.choices[0].message.content == engine.reply
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == "scripted-model"


def test_streamed_answer_is_the_whole_answer(sdk: openai.OpenAI, engine: ScriptedEngine) -> None:
    chunks = list(sdk.chat.completions.create(model="scripted-model", messages=HELLO, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == engine.reply
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]


def test_choices_are_kept_apart(sdk: openai.OpenAI, engine: ScriptedEngine) -> None:
    whole = sdk.chat.completions.create(model="scripted-model", messages=HELLO, n=3)
    expected = [engine.reply, engine.reply + "#1", engine.reply + "#2"]
    assert [choice.message.content for choice in whole.choices] == expected
    texts = ["", "", ""]
    for chunk in sdk.chat.completions.create(model="scripted-model", messages=HELLO, n=3, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == expected


def test_usage_counts_the_prompt_once_and_every_completion(sdk: openai.OpenAI, engine: ScriptedEngine) -> None:
    usage = sdk.chat.completions.create(
        model="scripted-model",
        messages=HELLO,
        n=2,
        prediction={"type": "content", "content": "def add"},
    ).usage
    prompt = len("<user>hello")
    completions = len(engine.reply) + len(engine.reply + "#1")
    assert usage.prompt_tokens == prompt
    assert usage.completion_tokens == completions
    assert usage.total_tokens == prompt + completions
    assert usage.prompt_tokens_details.cached_tokens == prompt // 2
    accepted = len(engine.reply) // 2 + len(engine.reply + "#1") // 2
    assert usage.completion_tokens_details.accepted_prediction_tokens == accepted
    assert usage.completion_tokens_details.rejected_prediction_tokens == completions + 10 - accepted


def test_parameters_reach_the_engine(sdk: openai.OpenAI, engine: ScriptedEngine) -> None:
    sdk.chat.completions.create(
        model="scripted-model",
        messages=HELLO,
        temperature=0.5,
        top_p=0.9,
        presence_penalty=0.25,
        frequency_penalty=-0.5,
        logit_bias={"17": -100, "18": 3},
        seed=7,
        stop=["\n\n", ""],
        max_completion_tokens=20,
        max_tokens=99,
        logprobs=True,
        top_logprobs=2,
        user="someone",
        metadata={"session": "1"},
        prediction={"type": "content", "content": [{"type": "text", "text": "def "}, {"type": "text", "text": "add"}]},
        extra_body={
            "top_k": -1,
            "min_p": 0.05,
            "repetition_penalty": 1.1,
            "edited_path": "src/add.py",
            "agentspec": {"speculation": False},
        },
    )
    request = engine.requests[0]
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 0, 0.05)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (0.25, -0.5, 1.1)
    assert sampling.logit_bias == {17: -100, 18: 3}
    assert (sampling.seed, sampling.stop, sampling.max_tokens, sampling.logprobs) == (7, ("\n\n",), 20, 2)
    assert (request.prediction, request.edited_path, request.speculation) == ("def add", "src/add.py", False)


def test_null_means_default(http: httpx.Client, engine: ScriptedEngine) -> None:
    names = ["temperature", "top_p", "n", "stop", "seed", "max_tokens", "stream", "tools", "logit_bias", "user"]
    body = {"messages": HELLO, "model": None} | dict.fromkeys(names)
    assert http.post("/v1/chat/completions", json=body).status_code == 200
    assert engine.requests[0].sampling == type(engine.requests[0].sampling)()


def test_messages_are_rendered_for_templates(sdk: openai.OpenAI, engine: ScriptedEngine) -> None:
    call = {"id": "call-1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    tool = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}
    sdk.chat.completions.create(
        model="scripted-model",
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call-1", "content": "text of the file"},
        ],
        tools=[tool],
    )
    prompt = engine.requests[0].prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.messages == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "text of the file", "tool_call_id": "call-1"},
    ]
    assert prompt.tools == [tool]


def test_no_tools_when_tool_choice_is_none(sdk: openai.OpenAI, engine: ScriptedEngine) -> None:
    tool = {"type": "function", "function": {"name": "read"}}
    sdk.chat.completions.create(model="scripted-model", messages=HELLO, tools=[tool], tool_choice="none")
    assert engine.requests[0].prompt.tools is None


def test_logprobs(sdk: openai.OpenAI) -> None:
    whole = sdk.chat.completions.create(
        model="scripted-model", messages=HELLO, logprobs=True, top_logprobs=2, max_tokens=3
    )
    content = whole.choices[0].logprobs.content
    assert [(token.token, token.logprob, token.bytes) for token in content] == [
        ("d", -0.5, [100]),
        ("e", -0.5, [101]),
        ("f", -0.5, [102]),
    ]
    assert [(top.token, top.logprob) for top in content[0].top_logprobs] == [("a", -1.0), ("b", -2.0)]
    stream = sdk.chat.completions.create(
        model="scripted-model", messages=HELLO, logprobs=True, top_logprobs=2, max_tokens=3, stream=True
    )
    streamed = [token for chunk in stream if chunk.choices[0].logprobs for token in chunk.choices[0].logprobs.content]
    assert streamed == content


def test_tool_calls_agree_between_stream_and_whole(sdk: openai.OpenAI, engine: ScriptedEngine) -> None:
    engine.script = lambda request: [
        Chunk(0, reasoning="look first"),
        tool_call(0, "call-1", name="read", arguments=""),
        tool_call(0, name=None, arguments='{"path":'),
        tool_call(0, arguments=' "a.py"}'),
        Chunk(0, finish_reason="tool_calls", receipt=Receipt(completion_tokens=9)),
    ]
    whole = sdk.chat.completions.create(model="scripted-model", messages=HELLO).choices[0]
    assert whole.message.content is None
    assert whole.message.tool_calls[0].id == "call-1"
    assert whole.message.tool_calls[0].function.name == "read"
    assert whole.message.tool_calls[0].function.arguments == '{"path": "a.py"}'
    assert whole.message.model_extra["reasoning_content"] == "look first"
    chunks = list(sdk.chat.completions.create(model="scripted-model", messages=HELLO, stream=True))
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert "".join(call.function.arguments or "" for call in calls) == '{"path": "a.py"}'
    assert all(chunk.choices[0].delta.tool_calls != [] for chunk in chunks)
    assert all(None not in call.to_dict().values() for call in calls), "no explicit nulls"
    assert all(None not in call.function.to_dict().values() for call in calls)
    assert chunks[-1].choices[0].finish_reason == whole.finish_reason == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
def test_receipt_only_when_asked(sdk: openai.OpenAI, stream: bool) -> None:
    def ask(**extra: object) -> list[dict[str, object]]:
        answer = sdk.chat.completions.create(
            model="scripted-model", messages=HELLO, n=2, stream=stream, extra_body=extra
        )
        return [part.model_extra or {} for part in answer] if stream else [answer.model_extra or {}]

    assert all("agentspec" not in part for part in ask())
    *others, last = ask(agentspec={"receipt": True})
    assert all("agentspec" not in part for part in others)
    receipts = last["agentspec"]["receipts"]
    assert [receipt["index"] for receipt in receipts] == [0, 1]
    assert receipts[0]["accepted"] == {"repository": 1}
    assert receipts[0]["tokens_per_step"] == receipts[0]["completion_tokens"] / receipts[0]["verify_steps"]


def test_receipt_comes_with_the_usage_chunk(http: httpx.Client) -> None:
    body = {
        "messages": HELLO,
        "stream": True,
        "stream_options": {"include_usage": True},
        "agentspec": {"receipt": True},
    }
    *chunks, _ = events(http.post("/v1/chat/completions", json=body))
    assert [("agentspec" in chunk, chunk["choices"] == []) for chunk in chunks][-1] == (True, True)
    assert sum("agentspec" in chunk for chunk in chunks) == 1


def custom_script(_request: object) -> list[Chunk]:
    """A call of a custom tool, whose text is JSON to the model, and one of a function."""
    return [
        tool_call(0, "call-a", name="patch", arguments='{"inp'),
        tool_call(0, arguments='ut": "say \\"x\\"\\n'),
        tool_call(0, arguments='"}'),
        tool_call(1, "call-b", name="read", arguments="{}"),
        Chunk(0, finish_reason="tool_calls", receipt=Receipt(completion_tokens=9)),
    ]


CUSTOM = {"type": "custom", "custom": {"name": "patch", "description": "patches", "format": {"type": "text"}}}
READ = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}


def test_custom_tools_take_and_give_text(sdk: openai.OpenAI, engine: ScriptedEngine) -> None:
    engine.script = custom_script
    asked = {"model": "scripted-model", "messages": HELLO, "tools": [CUSTOM, READ]}
    choice = {"type": "custom", "custom": {"name": "patch"}}
    whole = sdk.chat.completions.create(**asked, tool_choice=choice).choices[0]
    text, function = whole.message.tool_calls
    assert (text.type, text.id, text.custom.name, text.custom.input) == ("custom", "call-a", "patch", 'say "x"\n')
    assert (function.type, function.function.name) == ("function", "read")
    assert whole.finish_reason == "tool_calls"
    offered, _ = engine.requests[0].prompt.tools
    assert (offered["function"]["name"], offered["function"]["description"]) == ("patch", "patches")
    assert offered["function"]["parameters"]["required"] == ["input"]
    assert engine.requests[0].tool_choice.names == ("patch",)
    deltas = [
        call
        for chunk in sdk.chat.completions.create(**asked, stream=True)
        for call in chunk.choices[0].delta.tool_calls or ()
    ]
    shown = [call.model_dump(exclude_unset=True) for call in deltas]
    assert shown[0] == {"index": 0, "id": "call-a", "type": "custom", "custom": {"name": "patch", "input": ""}}
    assert shown[1]["function"] == {"name": "read", "arguments": "{}"}
    assert shown[2] == {"index": 0, "custom": {"input": 'say "x"\n'}}
    assert len(shown) == 3


def test_earlier_calls_of_custom_tools_reach_the_template(sdk: openai.OpenAI, engine: ScriptedEngine) -> None:
    call = {"id": "c1", "type": "custom", "custom": {"name": "patch", "input": 'say "x"'}}
    answer = {"role": "tool", "tool_call_id": "c1", "content": "done"}
    messages = [*HELLO, {"role": "assistant", "tool_calls": [call]}, answer]
    sdk.chat.completions.create(model="scripted-model", messages=messages, tools=[CUSTOM])
    function = {"name": "patch", "arguments": '{"input":"say \\"x\\""}'}
    [sent] = engine.requests[0].prompt.messages[1]["tool_calls"]
    assert sent == {"id": "c1", "type": "function", "function": function}


def test_a_custom_tool_without_a_name_is_refused(http: httpx.Client) -> None:
    response = http.post(
        "/v1/chat/completions", json={"messages": HELLO, "tools": [{"type": "custom", "name": "patch"}]}
    )
    assert response.status_code == 400
    assert "custom" in response.json()["error"]["param"]
