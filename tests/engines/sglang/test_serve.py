"""`agentspec serve --engine sglang` as its users have it: a process that answers completions over HTTP, and stops."""

import json
import os
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


def streamed(url: str) -> str:
    body = {"prompt": "def f(", "max_tokens": 48, "temperature": 0, "ignore_eos": True, "stream": True}
    pieces = []
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=300) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                choices = json.loads(line.removeprefix("data: "))["choices"]
                pieces += [choice["text"] for choice in choices]
    return "".join(pieces)
