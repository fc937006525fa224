"""`agentspec serve` as a process: where it listens, what it refuses, how it stops."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import httpx
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

START_SECONDS = 240.0
STOP_SECONDS = 120.0


@contextmanager
def serving(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server process and its URL; killed with the context if it still runs."""
    command = [sys.executable, "-m", "agentspec", "serve", "--port", "0", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        watchdog = threading.Timer(START_SECONDS, process.kill)
        watchdog.start()
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert "http://127.0.0.1:" in line, process.stderr and process.stderr.read()
            yield process, line.split()[-1].removesuffix("/v1")
        finally:
            watchdog.cancel()
            process.kill()


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agentspec", "serve", *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=START_SECONDS)


def test_it_serves_and_finishes_running_requests_before_it_stops(small: tuple[object, ...], model: Path) -> None:
    with serving(*small) as (process, url):
        assert httpx.get(f"{url}/health").status_code == 200
        (served,) = httpx.get(f"{url}/v1/models").json()["data"]
        assert served["id"] == model.name
        body = {"prompt": "def", "max_tokens": 1500, "temperature": 0, "stream": True, "ignore_eos": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=STOP_SECONDS) as stream:
            lines = (line for line in stream.iter_lines() if line.startswith("data: "))
            next(lines)
            process.send_signal(signal.SIGTERM)
            rest = list(lines)
        assert rest[-1] == "data: [DONE]"
        final = json.loads(rest[-2].removeprefix("data: "))
        assert final["choices"][0]["finish_reason"] in {"length", "stop"}
        assert process.wait(STOP_SECONDS) == 0


def test_keys_and_allowed_roots_and_a_clean_stop_on_ctrl_c(small: tuple[object, ...], tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("sesame\n")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text("a = 1\n")
    with serving(*small, "--api-key-file", tmp_path / "keys", "--allow-root", tmp_path) as (process, url):
        assert httpx.get(f"{url}/v1/models").status_code == 401
        with httpx.Client(base_url=url, headers={"Authorization": "Bearer sesame"}) as client:
            assert client.get("/v1/models").status_code == 200
            assert client.post("/v1/repositories", json={"path": str(tmp_path / "code")}).is_success
            assert client.post("/v1/repositories", json={"path": "/etc"}).status_code == 403
        process.send_signal(signal.SIGINT)
        assert process.wait(STOP_SECONDS) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_a_signal_while_the_model_loads_stops_it_too(small: tuple[object, ...]) -> None:
    command = [sys.executable, "-m", "agentspec", "serve", "--port", "0", *map(str, small)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        time.sleep(1.0)
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_SECONDS) in {0, -signal.SIGTERM}


def test_a_port_in_use_is_said_before_a_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = run("--port", taken.getsockname()[1], "--model", "no-such-model")
    assert result.returncode == 2
    assert "Address already in use" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "example.org", "::"])
def test_other_machines_need_keys(host: str) -> None:
    result = run("--host", host, "--model", "no-such-model")
    assert result.returncode == 2
    assert "api_key_file" in result.stderr


def test_a_missing_model_is_one_line(tmp_path: Path) -> None:
    result = run("--port", 0, "--model", tmp_path)
    assert result.returncode == 5
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr


def test_a_broken_model_is_one_line(tmp_path: Path, model: Path) -> None:
    (tmp_path / "broken").mkdir()
    for file in model.iterdir():
        content = file.read_bytes()
        (tmp_path / "broken" / file.name).write_bytes(content[:100] if file.suffix == ".safetensors" else content)
    result = run("--port", 0, "--model", tmp_path / "broken")
    assert result.returncode == 5
    assert "Traceback" not in result.stderr
