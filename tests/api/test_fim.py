"""Fill-in-the-middle: suffix, `/infill` and Mistral's endpoint, for every known family of models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agentspec.api.fim import FAMILIES, ContextFile, FimDetector
from agentspec.engines.base import Chunk, Receipt
from tests.api.scripted_engine import FIRST_SPECIAL, QWEN, ScriptedEngine
from tests.api.test_chat import events
from tests.api.test_errors import COMPLETIONS, assert_error

if TYPE_CHECKING:
    import httpx

    from tests.api.conftest import LiveServer

PROMPTS = {
    "qwen": "<|fim_prefix|>left<|fim_suffix|>right<|fim_middle|>",
    "codegemma": "<|fim_prefix|>left<|fim_suffix|>right<|fim_middle|>",
    "granite": "<|fim_prefix|>left<|fim_suffix|>right<|fim_middle|>",
    "starcoder": "<fim_prefix>left<fim_suffix>right<fim_middle>",
    "granite-3": "<fim_prefix>left<fim_suffix>right<fim_middle>",
    "deepseek": "<｜fim▁begin｜>left<｜fim▁hole｜>right<｜fim▁end｜>",  # noqa: RUF001
    "codestral": "[SUFFIX]right[PREFIX]left",
    "codellama": "▁<PRE>left▁<SUF>right▁<MID>",
}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
async def test_each_family_is_known_by_its_tokens(family: object) -> None:
    engine = ScriptedEngine()
    engine.special = [*family.markers, *([family.file] if family.file else []), *family.ends]
    template = await FimDetector(engine).template()
    assert template.family is family
    prompt = template.prompt("left", "right")
    assert prompt == PROMPTS[family.name]
    assert template.carries(prompt)
    assert set(template.end_tokens) == {FIRST_SPECIAL + number for number in range(len(engine.special))}


@pytest.mark.parametrize("missing", QWEN[:3])
async def test_a_tokenizer_without_one_marker_is_of_no_family(missing: str) -> None:
    engine = ScriptedEngine()
    engine.special = [marker for marker in QWEN if marker != missing]
    assert await FimDetector(engine).find() is None


async def test_only_a_prompt_in_the_template_carries_it() -> None:
    engine = ScriptedEngine()
    engine.special = QWEN
    template = await FimDetector(engine).template()
    assert template.carries("<|file_sep|>a.py\nx\n<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>")
    assert not template.carries("def f():\n    return '<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>'")
    assert not template.carries("<|fim_prefix|>a")


async def test_other_files_without_a_marker_for_files_are_plain_text() -> None:
    engine = ScriptedEngine()
    engine.special = ["[PREFIX]", "[SUFFIX]"]
    template = await FimDetector(engine).template()
    assert template.prompt("left", "right", [ContextFile("a.py", "A")]) == "[SUFFIX]right[PREFIX]A\nleft"


def test_suffix(qwen_http: httpx.Client, qwen: LiveServer) -> None:
    body = {"prompt": "left", "suffix": "right", "echo": True, "max_tokens": 99, "stop": "\n\n"}
    answer = qwen_http.post(COMPLETIONS, json=body).json()
    request = qwen.engine.requests[-1]
    assert request.prompt == PROMPTS["qwen"]
    assert set(request.sampling.stop_token_ids) == {FIRST_SPECIAL + number for number in range(len(QWEN))}
    assert request.sampling.stop == ("\n\n",)
    assert answer["choices"][0]["text"] == "left" + qwen.engine.reply


def test_suffix_and_token_ids_exclude_each_other(qwen_http: httpx.Client) -> None:
    assert_error(qwen_http.post(COMPLETIONS, json={"prompt": [1, 2], "suffix": "right"}), 400, param="suffix")


def test_infill_streams(qwen_http: httpx.Client, qwen: LiveServer) -> None:
    parts = events(qwen_http.post("/infill", json={"input_prefix": "left", "stream": True, "n_predict": 6}))
    assert "".join(part["content"] for part in parts) == qwen.engine.reply[:6]
    assert [part["stop"] for part in parts] == [False, False, True]
    assert parts[-1]["stop_type"] == "limit"


def test_infill_that_only_warms_the_cache(qwen_http: httpx.Client, qwen: LiveServer) -> None:
    answer = qwen_http.post("/infill", json={"input_prefix": "left", "n_predict": 0}).json()
    assert answer["content"] == ""
    assert qwen.engine.requests[-1].sampling.max_tokens == 1
    qwen_http.post("/infill", json={"input_prefix": "left", "n_predict": -1})
    assert qwen.engine.requests[-1].sampling.max_tokens is None


@pytest.mark.parametrize("stream", [False, True])
def test_fim_completions(qwen_http: httpx.Client, qwen: LiveServer, stream: bool) -> None:
    body = {"model": "scripted-model", "prompt": "left", "suffix": "right", "random_seed": 3, "stream": stream}
    response = qwen_http.post("/v1/fim/completions", json=body)
    request = qwen.engine.requests[-1]
    assert (request.prompt, request.sampling.seed) == (PROMPTS["qwen"], 3)
    if stream:
        *chunks, done = events(response)
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        assert (text, done) == (qwen.engine.reply, "[DONE]")
    else:
        assert response.json()["choices"][0]["message"]["content"] == qwen.engine.reply
        assert response.json()["object"] == "chat.completion"


def test_errors_inside_an_infill_stream(qwen_http: httpx.Client, qwen: LiveServer) -> None:
    qwen.engine.script = lambda request: [Chunk(0, "a", (1,)), RuntimeError("secret")]
    parts = events(qwen_http.post("/infill", json={"input_prefix": "left", "stream": True}))
    assert parts[0]["content"] == "a"
    assert parts[1]["error"]["code"] == "internal_error"
    qwen.engine.script = lambda request: [Chunk(0, finish_reason="stop", receipt=Receipt())]
    assert qwen_http.post("/infill", json={"input_prefix": "left"}).json()["content"] == ""
