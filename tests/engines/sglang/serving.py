"""A SGLang server for tests, started by the launcher under test, in a thread of its own."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from agentspec.config import Settings
from agentspec.engines.sglang.launcher import ServerProcess, free_port

KV_TOKENS = 16_384


def server_settings(
    index_directory: Path,
    *,
    head: Path | None = None,
    speculation: bool = True,
    model_free: bool = True,
    deterministic: bool = False,
    drafting: dict[str, Any] | None = None,
    **arguments: bool | int | str,
) -> Settings:
    return Settings.load(
        engine={"kind": "sglang", "device": "cpu", "speculation": speculation, "kv_tokens": KV_TOKENS},
        sglang={
            "draft_model": None if head is None else str(head),
            "model_free": model_free,
            "deterministic": deterministic,
            "arguments": {name.replace("_", "-"): value for name, value in arguments.items()},
        },
        drafting=drafting or {},
        index={"directory": index_directory},
    )


class Server:
    """A running server."""

    def __init__(self, url: str, process: ServerProcess) -> None:
        self.url = url
        self.process = process
        self.http = httpx.Client(base_url=url, timeout=300)

    def generate(self, **body: Any) -> Any:
        return self.post("/generate", body)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        response = self.http.post(path, json=body)
        response.raise_for_status()
        return response.json()

    def metric(self, name: str) -> float:
        lines = self.http.get("/metrics").text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))


@contextmanager
def serving(model: Path, settings: Settings) -> Iterator[Server]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    process = ServerProcess(settings, str(model), free_port())
    try:
        asyncio.run_coroutine_threadsafe(process.start(), loop).result()
        server = Server(process.url, process)
        try:
            yield server
        finally:
            server.http.close()
    finally:
        asyncio.run_coroutine_threadsafe(process.stop(grace=10), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
