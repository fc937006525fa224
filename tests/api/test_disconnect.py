"""A client that leaves, streaming or not, frees its slot at once."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING

import httpx
import pytest

from agentspec.engines.base import Chunk
from tests.api.conftest import LiveServer

if TYPE_CHECKING:
    from collections.abc import Callable

    import openai
    from starlette.types import Receive, Scope, Send

    from tests.api.scripted_engine import ScriptedEngine

HELLO = [{"role": "user", "content": "hello"}]
SLOW = 60.0
MOST_SECONDS_TO_FREE = 0.1


def wait_for(condition: Callable[[], object], seconds: float = 2.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.001)


def assert_freed_since(left: float, engine: ScriptedEngine, count: int = 1) -> None:
    wait_for(lambda: not engine.running)
    assert len(engine.freed) == count
    assert max(engine.freed.values()) - left < MOST_SECONDS_TO_FREE
    assert sorted(engine.aborted) == sorted(engine.freed), "every request was aborted by its id too"


def test_closing_an_sdk_stream(sdk: openai.OpenAI, engine: ScriptedEngine) -> None:
    engine.script = lambda request: [Chunk(0, "def"), SLOW]
    stream = sdk.chat.completions.create(model="scripted-model", messages=HELLO, stream=True)
    next(iter(stream))
    left = time.perf_counter()
    stream.close()
    assert_freed_since(left, engine)


def test_leaving_a_stream_that_sends_all_the_time(sdk: openai.OpenAI, engine: ScriptedEngine) -> None:
    engine.script = lambda request: (step for _ in range(10**6) for step in (Chunk(0, "x" * 1000), 0.0001))
    stream = sdk.completions.create(model="scripted-model", prompt="x", stream=True)
    for _ in range(20):
        next(stream)
    left = time.perf_counter()
    stream.close()
    assert_freed_since(left, engine)


def test_leaving_a_stream_that_nobody_reads(server: LiveServer, engine: ScriptedEngine) -> None:
    """The server is blocked in sending then, not in waiting for the engine."""
    engine.script = lambda request: (Chunk(0, "x" * 100_000) for _ in range(10**6))
    with httpx.Client(base_url=server.url, timeout=5) as http:
        request = http.build_request("POST", "/v1/completions", json={"prompt": "x", "stream": True})
        response = http.send(request, stream=True)
        time.sleep(0.3)
        left = time.perf_counter()
        response.close()
    assert_freed_since(left, engine)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompts", [1, 3])
def test_leaving_before_the_first_token(server: LiveServer, engine: ScriptedEngine, stream: bool, prompts: int) -> None:
    engine.script = lambda request: [SLOW]
    body = {"prompt": ["x"] * prompts, "stream": stream}
    with httpx.Client(base_url=server.url, timeout=0.2) as http, pytest.raises(httpx.ReadTimeout):
        http.post("/v1/completions", json=body)
    left = time.perf_counter()
    assert_freed_since(left, engine, prompts)


class Relay:
    """A TCP proxy in a thread, for one connection."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        client, _ = self._listener.accept()
        with client, socket.create_connection(("127.0.0.1", self._target)) as upstream:
            back = threading.Thread(target=self._copy, args=(upstream, client), daemon=True)
            back.start()
            self._copy(client, upstream)
            upstream.shutdown(socket.SHUT_RDWR)
            back.join(5)

    @staticmethod
    def _copy(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)

    def __enter__(self) -> Relay:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(5)
        self._listener.close()


class HttpProxy:
    """A reverse proxy as people write them: an ASGI application that forwards with httpx and ends with its client."""

    def __init__(self, target: int) -> None:
        self._target = f"http://127.0.0.1:{target}"
        self._server = LiveServer(self, None, None, None)
        self.port = self._server.port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            while (message := await receive())["type"] != "lifespan.shutdown":
                await send({"type": f"{message['type']}.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        body = (await receive())["body"]
        answer = asyncio.create_task(self._answer(scope, body, send))
        gone = asyncio.create_task(self._gone(receive))
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        for task in (answer, gone):
            task.cancel()
        await asyncio.wait({answer, gone})

    async def _answer(self, scope: Scope, body: bytes, send: Send) -> None:
        headers = [header for header in scope["headers"] if header[0] != b"host"]
        async with (
            httpx.AsyncClient(base_url=self._target, timeout=None) as http,
            http.stream(scope["method"], scope["path"], content=body, headers=headers) as response,
        ):
            await send({"type": "http.response.start", "status": response.status_code, "headers": response.headers.raw})
            async for piece in response.aiter_raw():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    @staticmethod
    async def _gone(receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    def __enter__(self) -> HttpProxy:
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__()


def test_the_time_to_free_is_a_metric(serve: Callable[..., LiveServer]) -> None:
    server = serve()
    with httpx.Client(base_url=server.url, timeout=0.2) as http:
        for stream in (False, True):
            assert http.post("/v1/completions", json={"prompt": "x", "stream": stream}).status_code == 200
        assert "agentspec_disconnects_total 0.0" in http.get("/metrics").text, "a finished answer is no disconnect"
        assert server.engine.aborted == []
        server.engine.script = lambda request: [SLOW]
        with pytest.raises(httpx.ReadTimeout):
            http.post("/v1/completions", json={"prompt": "x"})
        wait_for(lambda: "agentspec_disconnects_total 1.0" in http.get("/metrics").text)
        text = http.get("/metrics").text
        assert 'agentspec_disconnect_to_free_seconds_bucket{le="0.1"} 1.0' in text
        assert 'agentspec_http_requests_total{method="POST",route="/v1/completions",status="499"} 1.0' in text
