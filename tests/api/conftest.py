"""A live server on loopback around a scripted engine."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING

import anthropic
import httpx
import openai
import pytest
import uvicorn

from agentspec.api.app import create_app
from agentspec.api.repositories import RepositoryRegistry
from agentspec.config import Settings
from tests.api.scripted_engine import QWEN, ScriptedEngine
from tests.api.scripted_indexer import ScriptedIndexer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fastapi import FastAPI


class LiveServer:
    """uvicorn in a thread of its own, on a free port of the loopback interface."""

    def __init__(
        self, app: FastAPI, engine: ScriptedEngine, indexer: ScriptedIndexer, registry: RepositoryRegistry
    ) -> None:
        self.engine = engine
        self.indexer = indexer
        self.registry = registry
        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        asyncio.run(self._server.serve([self.socket]))

    def __enter__(self) -> LiveServer:
        self._thread.start()
        deadline = time.monotonic() + 10
        while not self._server.started:
            assert self._thread.is_alive(), "the server did not start"
            assert time.monotonic() < deadline, "the server did not start in time"
            time.sleep(0.005)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        self.socket.close()
        assert not self._thread.is_alive(), "the server did not stop"


def live_server(
    allowed_root: Path, prepare: Callable[[FastAPI], None] = lambda app: None, **server: object
) -> LiveServer:
    """A server over a scripted engine of its own; further keyword arguments are settings of the server section."""
    settings = Settings.load(server=server, index={"allowed_roots": (allowed_root,)})
    engine, indexer = ScriptedEngine(), ScriptedIndexer()
    registry = RepositoryRegistry(settings.index.allowed_roots, indexer)
    app = create_app(engine, settings, registry)
    prepare(app)
    return LiveServer(app, engine, indexer, registry)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """One server with default settings for all tests that can share it."""
    with live_server(tmp_path_factory.mktemp("shared")) as server:
        yield server


@pytest.fixture
def server(shared: LiveServer) -> LiveServer:
    """The shared server, its engine as good as new."""
    shared.engine.reset()
    return shared


@pytest.fixture
def engine(server: LiveServer) -> ScriptedEngine:
    return server.engine


@pytest.fixture(scope="session")
def shared_http(shared: LiveServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=shared.url, timeout=10) as client:
        yield client


@pytest.fixture
def http(server: LiveServer, shared_http: httpx.Client) -> httpx.Client:
    return shared_http


@pytest.fixture(scope="session")
def shared_sdk(shared: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{shared.url}/v1", api_key="none", max_retries=0, timeout=10) as client:
        yield client


@pytest.fixture
def sdk(server: LiveServer, shared_sdk: openai.OpenAI) -> openai.OpenAI:
    return shared_sdk


@pytest.fixture(scope="session")
def shared_claude(shared: LiveServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=shared.url, api_key="none", max_retries=0, timeout=10) as client:
        yield client


@pytest.fixture
def claude(server: LiveServer, shared_claude: anthropic.Anthropic) -> anthropic.Anthropic:
    return shared_claude


@pytest.fixture
def allowed_root(tmp_path: Path) -> Path:
    root = tmp_path / "allowed"
    root.mkdir()
    return root


@pytest.fixture
def serve(allowed_root: Path) -> Iterator[Callable[..., LiveServer]]:
    """Starts servers for one test, for settings that differ or a state that must be fresh."""
    with contextlib.ExitStack() as stack:
        yield lambda **server: stack.enter_context(live_server(allowed_root, **server))


@pytest.fixture
def qwen(serve: Callable[..., LiveServer]) -> LiveServer:
    """A server whose tokenizer has the markers of Qwen's coders."""
    server = serve()
    server.engine.special = QWEN
    return server


@pytest.fixture
def qwen_http(qwen: LiveServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=qwen.url) as client:
        yield client
