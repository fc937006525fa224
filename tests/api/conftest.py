"""A live server on loopback around a scripted engine."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING

import httpx
import openai
import pytest
import uvicorn

from agentspec.api.app import create_app
from agentspec.api.repositories import RepositoryRegistry
from agentspec.config import Settings
from tests.api.scripted_engine import ScriptedEngine
from tests.api.scripted_indexer import ScriptedIndexer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fastapi import FastAPI


class LiveServer:
    """uvicorn in a thread of its own, on a free port of the loopback interface."""

    def __init__(self, app: FastAPI) -> None:
        self.app = app
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


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def indexer() -> ScriptedIndexer:
    return ScriptedIndexer()


@pytest.fixture
def allowed_root(tmp_path: Path) -> Path:
    root = tmp_path / "allowed"
    root.mkdir()
    return root


@pytest.fixture
def serve(engine: ScriptedEngine, indexer: ScriptedIndexer, allowed_root: Path) -> Iterator[Callable[..., LiveServer]]:
    """Starts servers over `engine`; keyword arguments are settings of the server section."""
    with contextlib.ExitStack() as stack:

        def start(**server: object) -> LiveServer:
            settings = Settings.load(server=server, index={"allowed_roots": (allowed_root,)})
            app = create_app(engine, settings, RepositoryRegistry(settings.index.allowed_roots, indexer))
            return stack.enter_context(LiveServer(app))

        yield start


@pytest.fixture
def server(serve: Callable[..., LiveServer]) -> LiveServer:
    return serve()


@pytest.fixture
def http(server: LiveServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=10) as client:
        yield client


@pytest.fixture
def sdk(server: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=10) as client:
        yield client
