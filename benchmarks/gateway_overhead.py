"""What the HTTP server adds to an engine: time to the first token, and time per streamed chunk.

    python benchmarks/gateway_overhead.py
    python benchmarks/gateway_overhead.py --streams 16 --chunks 200 --rounds 20

A server process serves a fake engine over loopback; this process reads raw bytes and looks at nothing but the blank
lines between events, so that what is timed is the gateway. All is done round after round in turn.

First tokens: as many streams as are wanted are open all the time, each gives a chunk every 20 ms, and they begin at
different moments; a stream's first chunk is there at once. Chunks: all streams begin together and give their chunks as
fast as they are taken.

Beside the time of the clock, which other programs on the machine lengthen, stands the processor time of the server
process, which they do not: that of a stream with one chunk, and that of each further chunk.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from rich.console import Console
from rich.table import Table

from agentspec.api.app import create_app
from agentspec.api.logs import configure_logs
from agentspec.api.repositories import RepositoryRegistry
from agentspec.config import Settings
from agentspec.engines.base import Chunk, EngineStats, GenerationRequest, ModelInfo, Receipt

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from multiprocessing.connection import Connection

    from agentspec.engines.base import ChatPrompt
    from agentspec.index.snapshot import Snapshot

TEXT = " token"
PACE_SECONDS = 0.02
"""Between the chunks of a paced stream."""

PACED_CHUNKS = 10

IDLE_SECONDS = 90.0
"""Between the chunks of an idle stream."""

PAUSES = {"fast": 0.0, "paced": PACE_SECONDS, "idle": IDLE_SECONDS}
"""What the fake engine waits between chunks, by a word in the prompt."""


def body_of(path: str, chunks: int, text: str) -> bytes:
    """A request for a stream of some chunks; its text, one of `PAUSES`, tells the fake engine how to pace them."""
    messages = [{"role": "user", "content": text}]
    fields: dict[str, Any] = {
        "/v1/chat/completions": {"messages": messages, "max_tokens": chunks},
        "/v1/completions": {"prompt": text, "max_tokens": chunks},
        "/v1/messages": {"model": "fake", "messages": messages, "max_tokens": chunks},
        "/v1/responses": {"input": text, "store": False, "max_output_tokens": chunks},
        "/v1/edits": {"content": text, "instruction": "change it", "max_tokens": chunks},
    }[path]
    return json.dumps({**fields, "stream": True}).encode()


PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "/v1/edits")


class FakeEngine:
    """Gives every request as many chunks as it asks for."""

    model = ModelInfo("fake", 1_000_000, 0)

    async def start(self) -> None:
        """Nothing to load."""

    async def stop(self) -> None:
        """Nothing to release."""

    async def abort(self, request_id: str) -> None:
        """Streams end by themselves."""

    def stats(self) -> EngineStats:
        """Always ready."""
        return EngineStats(ready=True, running=0, waiting=0, kv_tokens_used=0, kv_tokens_total=0)

    async def tokenize(self, _prompt: str | ChatPrompt) -> list[int]:
        """Some tokens."""
        return [1, 2, 3]

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """Some text."""
        return TEXT * len(tokens)

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """The chunks; the loop gets its turn between them, as with a real engine."""
        pause = next(seconds for word, seconds in PAUSES.items() if word in str(request.prompt))
        chunks = request.sampling.max_tokens or 1
        for number in range(chunks):
            yield Chunk(text=TEXT, token_ids=(number,))
            await asyncio.sleep(pause if number + 1 < chunks else 0.0)
        yield Chunk(finish_reason="stop", receipt=Receipt(prompt_tokens=3, completion_tokens=chunks))


class NoIndexer:
    """There are no repositories."""

    def build(self, root: Path, progress: Callable[[int, int], None]) -> None:
        """Never called."""

    def snapshot(self, root: Path, fingerprint: str) -> Snapshot:
        """Never called."""
        raise NotImplementedError


def serve(pipe: Connection) -> None:
    """Serve a fake engine; tells its port, and its processor time when asked. Its log is written and thrown away."""
    sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    configure_logs(as_json=True)
    app = create_app(FakeEngine(), Settings.load(), RepositoryRegistry((), NoIndexer()))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, port=0, access_log=False))

    def tell_time() -> None:
        pipe.recv()
        pipe.send(time.process_time())

    async def run() -> None:
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        pipe.send(server.servers[0].sockets[0].getsockname()[1])
        asyncio.get_running_loop().add_reader(pipe.fileno(), tell_time)
        await serving

    asyncio.run(run())


async def stream(port: int, path: str, chunks: int, text: str) -> float:
    """Read one streamed answer; seconds from the request to its first token."""
    body = body_of(path, chunks, text)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    begun = time.perf_counter()
    writer.write(head.encode() + b"connection: close\r\n\r\n" + body)
    first, seen, received = 0.0, b"", 0
    while data := await reader.read(1 << 16):
        received += data.count(TEXT.strip().encode())
        if not first:
            seen += data
            first = time.perf_counter() - begun if TEXT.strip().encode() in seen else 0.0
    writer.close()
    assert received >= chunks, f"{path}: {received} of {chunks} chunks arrived"
    return first


@dataclass(slots=True)
class Figures:
    """What was measured of one endpoint, in seconds."""

    first: list[float] = field(default_factory=list)
    per_chunk: list[float] = field(default_factory=list)
    cpu_first: list[float] = field(default_factory=list)
    cpu_per_chunk: list[float] = field(default_factory=list)


class Bench:
    """Measures the endpoints of a server in turn."""

    def __init__(self, port: int, cpu: Callable[[], float], streams: int, chunks: int) -> None:
        self.found = {path: Figures() for path in PATHS}
        self._port = port
        self._cpu = cpu
        self._streams = streams
        self._chunks = chunks

    async def round(self) -> None:
        """Measure each endpoint once."""
        for path, figures in self.found.items():
            figures.first += await self._first_tokens(path)
            one_chunk, _ = await self._all_at_once(path, 1)
            cpu, seconds = await self._all_at_once(path, self._chunks)
            figures.cpu_first.append(one_chunk / self._streams)
            further = self._streams * (self._chunks - 1)
            figures.cpu_per_chunk.append((cpu - one_chunk) / further)
            figures.per_chunk.append(seconds / (self._streams * self._chunks))

    async def _first_tokens(self, path: str) -> list[float]:
        async def delayed(number: int) -> float:
            await asyncio.sleep(PACE_SECONDS * PACED_CHUNKS * number / self._streams)
            await stream(self._port, path, PACED_CHUNKS, "paced")
            return await stream(self._port, path, PACED_CHUNKS, "paced")

        return await asyncio.gather(*(delayed(number) for number in range(self._streams)))

    async def _all_at_once(self, path: str, chunks: int) -> tuple[float, float]:
        """Processor seconds of the server, and seconds of the clock."""
        cpu, begun = self._cpu(), time.perf_counter()
        await asyncio.gather(*(stream(self._port, path, chunks, "fast") for _ in range(self._streams)))
        return self._cpu() - cpu, time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=16, help="at once")
    parser.add_argument("--chunks", type=int, default=200, help="of each stream")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    asyncio.run(compare(options.streams, options.chunks, options.rounds))


async def compare(streams: int, chunks: int, rounds: int) -> None:
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(there,), daemon=True)
    process.start()
    port = here.recv()

    def server_cpu() -> float:
        here.send(None)
        return float(here.recv())

    try:
        await Bench(port, server_cpu, streams, chunks).round()  # warms up
        bench = Bench(port, server_cpu, streams, chunks)
        for _ in range(rounds):
            await bench.round()
    finally:
        process.terminate()
        process.join()
    show(bench.found, f"{streams} streams at once, {chunks} chunks each, {rounds} rounds; milliseconds")


def show(found: dict[str, Figures], title: str) -> None:
    table = Table(title=title)
    table.add_column("")
    for column in ("first token p50", "p95", "its CPU p50", "per chunk p50", "fastest round", "its CPU p50"):
        table.add_column(column, justify="right")
    for path, figures in found.items():
        first = sorted(figures.first)
        values = (
            statistics.median(first),
            first[int(0.95 * len(first))],
            statistics.median(figures.cpu_first),
            statistics.median(figures.per_chunk),
            min(figures.per_chunk),
            statistics.median(figures.cpu_per_chunk),
        )
        table.add_row(path, *(f"{1000 * value:.3f}" for value in values))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
