"""Starts SGLang, watches it, starts it again when it dies, and leaves nothing of it behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections import deque
from typing import TYPE_CHECKING

import httpx
import structlog

from agentspec.engines.sglang.command import server_command, server_environment
from agentspec.errors import ModelError

if TYPE_CHECKING:
    from agentspec.config import Settings

_log = structlog.get_logger(__name__)

READY_PATH = "/ready"
_POLL_SECONDS = 0.5
_KEPT_LINES = 100
_LONGEST_LINE = 2000
"""SGLang prints all of its settings in one line of 20,000 characters."""
_FIRST_BACKOFF_SECONDS = 1.0
_LONGEST_BACKOFF_SECONDS = 30.0
_STABLE_SECONDS = 60.0
"""A server that ran that long did not fail at start: the count of restarts begins anew."""


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class ServerProcess:
    """One run of the server: the process that we started and everything that it started.

    Args:
        settings: all of them.
        model: folder or hub id.
        port: where it listens.
    """

    def __init__(self, settings: Settings, model: str, port: int) -> None:
        self._settings = settings
        self._command = server_command(settings, model, port)
        self.url = f"http://127.0.0.1:{port}"
        self.lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start it and wait until it answers.

        Raises:
            ModelError: it ended, or was not ready in time; the message holds its last words.
        """
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            env=server_environment(self._settings),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            limit=2**20,
        )
        self._reader = asyncio.create_task(self._read_log())
        deadline = time.monotonic() + self._settings.sglang.start_seconds
        try:
            async with httpx.AsyncClient(base_url=self.url, timeout=5) as client:
                while not await _is_ready(client):
                    if self._process.returncode is not None:
                        raise ModelError(f"SGLang ended with status {self._process.returncode}:\n{self.last_words()}")
                    if time.monotonic() > deadline:
                        raise ModelError(f"SGLang was not ready in time:\n{self.last_words()}")
                    await asyncio.sleep(_POLL_SECONDS)
        except BaseException:
            await self.stop(grace=0)
            raise

    async def wait(self) -> int:
        """Wait until it ends; its status."""
        assert self._process is not None
        return await self._process.wait()

    async def stop(self, grace: float) -> None:
        """End it and all of its children, first politely. Idempotent.

        Args:
            grace: seconds between asking and killing.
        """
        process = self._process
        if process is None:
            return
        if grace > 0 and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), grace)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        if self._reader is not None:
            self._reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader

    def last_words(self) -> str:
        """The end of its log."""
        return "\n".join(list(self.lines)[-20:])

    async def _read_log(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await _next_line(self._process.stdout):
            text = line.decode(errors="replace").rstrip()[:_LONGEST_LINE]
            self.lines.append(text)
            _log.debug("sglang", line=text)


async def _next_line(stream: asyncio.StreamReader) -> bytes:
    """A line, or as much of an endless one as fits the buffer; empty at the end."""
    try:
        return await stream.readline()
    except ValueError:
        return b"(a line too long to keep)\n"


async def _is_ready(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get(READY_PATH)).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


class Supervisor:
    """Keeps a server running.

    Args:
        settings: all of them.
        model: folder or hub id.

    Attributes:
        ready: whether a server answers now.
        failure: why it was given up, if it was.
    """

    def __init__(self, settings: Settings, model: str) -> None:
        self._settings = settings
        self._model = model
        self._port = free_port()
        self._server: ServerProcess | None = None
        self._watch: asyncio.Task[None] | None = None
        self.ready = False
        self.failure: str | None = None

    @property
    def url(self) -> str:
        """Where the server listens, restarts included."""
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Start the server and wait until it answers.

        Raises:
            ModelError: it cannot be started.
        """
        await self._start_once()
        self._watch = asyncio.create_task(self._keep_running())

    async def stop(self) -> None:
        """End the server for good. Idempotent."""
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
        self.ready = False
        if self._server is not None:
            await self._server.stop(self._settings.server.shutdown_seconds)

    async def _start_once(self) -> None:
        self._server = ServerProcess(self._settings, self._model, self._port)
        await self._server.start()
        self.ready = True

    async def _keep_running(self) -> None:
        restarts = 0
        while True:
            assert self._server is not None
            started = time.monotonic()
            status = await self._server.wait()
            self.ready = False
            words = self._server.last_words()
            await self._server.stop(grace=0)
            restarts = 0 if time.monotonic() - started > _STABLE_SECONDS else restarts
            while not self.ready:
                restarts += 1
                if restarts > self._settings.sglang.restarts:
                    self.failure = f"SGLang ended with status {status} and was restarted too often:\n{words}"
                    _log.error("sglang given up", status=status, last_words=words)
                    return
                delay = min(_FIRST_BACKOFF_SECONDS * 2 ** (restarts - 1), _LONGEST_BACKOFF_SECONDS)
                _log.warning("sglang ended, restarting", status=status, seconds=delay, last_words=words)
                await asyncio.sleep(delay)
                try:
                    await self._start_once()
                except ModelError as error:
                    words = str(error)
