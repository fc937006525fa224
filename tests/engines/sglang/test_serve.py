"""`agentspec serve --engine sglang` as its users have it: a process that answers completions over HTTP, and stops."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

pytestmark = pytest.mark.sglang

START_SECONDS = 900.0
STOP_SECONDS = 120.0


@pytest.fixture(scope="module")
def served(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its URL."""
    folder = tmp_path_factory.mktemp("serve")
    command = [sys.executable, "-m", "agentspec", "serve", "--engine", "sglang", "--device", "cpu", "--port", "0"]
    environment = os.environ | {
        "AGENTSPEC_CACHE_DIRECTORY": str(folder / "cache"),
        "AGENTSPEC_INDEX__DIRECTORY": str(folder / "index"),
        "AGENTSPEC_ENGINE__KV_TOKENS": "4096",
        # several tokens at a time even without drafts, so that it shows where an answer depends on how it is cut
        "AGENTSPEC_SGLANG__ARGUMENTS": json.dumps({"tool-call-parser": "qwen25", "stream-interval": 8}),
    }
    with (folder / "log").open("w+") as log:
        process = subprocess.Popen(
            [*command, "--model", str(tiny)], stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        )
        watchdog = threading.Timer(START_SECONDS, process.kill)
        watchdog.start()
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            log.seek(0)
            assert "http://127.0.0.1:" in line, log.read()[-3000:]
            watchdog.cancel()
            yield process, line.split()[-1].removesuffix("/v1")
        finally:
            watchdog.cancel()
            process.kill()
            process.wait()


def completion(url: str, **body: Any) -> dict[str, Any]:
    fixed = {"prompt": "def f(", "max_tokens": 48, "temperature": 0, "ignore_eos": True}
    response = httpx.post(f"{url}/v1/completions", json=fixed | body, timeout=300)
    response.raise_for_status()
    answer: dict[str, Any] = response.json()
    return answer


def test_completions_over_http(served: tuple[subprocess.Popen[str], str], tiny: Path) -> None:
    process, url = served
    [model] = httpx.get(f"{url}/v1/models").json()["data"]
    assert model["id"] == tiny.name
    first = completion(url)
    text = first["choices"][0]["text"]
    assert first["usage"]["completion_tokens"] == 48
    again = completion(url, prediction={"type": "content", "content": text})
    assert again["choices"][0]["text"] == text
    assert again["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] > 0
    assert streamed(url) == text
    assert_schema_is_followed(url)
    assert_calls_are_read_the_same_way(url)
    assert_a_required_tool_is_called_the_same_way(url)
    children = psutil.Process(process.pid).children(recursive=True)
    assert any("sglang" in " ".join(child.cmdline()) for child in children)
    process.send_signal(signal.SIGTERM)
    assert process.wait(STOP_SECONDS) == 0
    _, left = psutil.wait_procs(children, timeout=30)
    assert left == [], "processes of the server are left"


def assert_schema_is_followed(url: str) -> None:
    """A JSON schema holds, and the text under it is the same with drafts of the very answer and without any."""
    schema = {
        "type": "object",
        "properties": {"kind": {"enum": ["call", "name"]}, "done": {"type": "boolean"}},
        "required": ["kind", "done"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "note", "schema": schema}}
    asked: dict[str, Any] = {"response_format": form, "ignore_eos": False}
    plain = completion(url, **asked, agentspec={"speculation": False})["choices"][0]
    drafted = completion(url, **asked, prediction={"type": "content", "content": plain["text"]})["choices"][0]
    assert drafted["text"] == plain["text"]
    assert drafted["finish_reason"] == plain["finish_reason"]
    assert plain["text"].lstrip().startswith("{")
    if plain["finish_reason"] == "stop":
        assert json.loads(plain["text"])["kind"] in ("call", "name")


SIDE = {
    "type": "object",
    "properties": {"side": {"enum": ["left", "right"]}},
    "required": ["side"],
    "additionalProperties": False,
}
TURN: dict[str, Any] = {"type": "function", "function": {"name": "turn", "parameters": SIDE}}


def assert_calls_are_read_the_same_way(url: str) -> None:
    """Text and calls of a given answer, with drafts of the very answer and without any, whole and streamed."""
    sides = ['{"side": "left"}', '{"side": "right"}']
    calls = [f'<tool_call>\n{{"name": "turn", "arguments": {side}}}\n</tool_call>\n' for side in sides]
    answer = f"Turn <twice>.\n{''.join(calls)}Done."
    form = {"type": "regex", "pattern": re.escape(answer).replace("\\\n", "\\n")}
    asked = {"tools": [TURN], "response_format": form, "max_tokens": 400}
    plain = the_same_answer(url, asked, prediction=answer)
    assert plain["calls"] == [("turn", side) for side in sides]
    assert plain["text"].startswith("Turn <twice")


def assert_a_required_tool_is_called_the_same_way(url: str) -> None:
    """SGLang holds arguments to the schema of strict tools only. The model does not end its answer by itself."""
    strict = {**TURN, "function": {**TURN["function"], "strict": True}}
    named = {"type": "function", "function": {"name": "turn"}}
    plain = the_same_answer(url, {"tools": [strict], "tool_choice": named, "max_tokens": 200})
    name, arguments = plain["calls"][0]
    assert name == "turn"
    assert json.loads(arguments)["side"] in ("left", "right")


def the_same_answer(url: str, asked: dict[str, Any], *, prediction: str | None = None) -> dict[str, Any]:
    """The answer to a chat, which is the same with drafts and without, whole and streamed."""
    fixed = {"messages": [{"role": "user", "content": "Turn."}], "temperature": 0}
    drafts = {} if prediction is None else {"prediction": {"type": "content", "content": prediction}}
    plain, *others = (
        chat(url, fixed | asked | extra)
        for extra in (
            {"agentspec": {"speculation": False}},
            drafts,
            {"agentspec": {"speculation": False}, "stream": True},
            drafts | {"stream": True},
        )
    )
    for other in others:
        assert other == plain
    return plain


def chat(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """Text, calls and finish reason of an answer, put together where it is streamed."""
    response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300)
    response.raise_for_status()
    if not body.get("stream"):
        [choice] = response.json()["choices"]
        functions = [call["function"] for call in choice["message"].get("tool_calls") or []]
        calls = [(function["name"], function["arguments"]) for function in functions]
        return {"text": choice["message"]["content"] or "", "calls": calls, "reason": choice["finish_reason"]}
    text, reason, parts = "", None, dict[int, list[str]]()
    for line in response.text.splitlines():
        if line.startswith("data: {"):
            [choice] = json.loads(line.removeprefix("data: "))["choices"]
            text += choice["delta"].get("content") or ""
            reason = choice["finish_reason"] or reason
            for call in choice["delta"].get("tool_calls") or []:
                part = parts.setdefault(call["index"], ["", ""])
                part[0] += call["function"].get("name") or ""
                part[1] += call["function"].get("arguments") or ""
    return {"text": text, "calls": [tuple(parts[index]) for index in sorted(parts)], "reason": reason}


def streamed(url: str) -> str:
    body = {"prompt": "def f(", "max_tokens": 48, "temperature": 0, "ignore_eos": True, "stream": True}
    pieces = []
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=300) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                choices = json.loads(line.removeprefix("data: "))["choices"]
                pieces += [choice["text"] for choice in choices]
    return "".join(pieces)
