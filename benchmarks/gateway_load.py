"""The HTTP server under load: many idle streams, and short requests at a fixed rate, for a minute.

    python -m benchmarks.gateway_load
    python -m benchmarks.gateway_load --idle 1000 --rate 200 --seconds 60

A server process serves a fake engine over loopback. The idle streams give a chunk when they begin and another when the
load is over, and must be whole then. Requests are sent when they are due, whether or not earlier ones were answered.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psutil

from benchmarks.gateway_overhead import IDLE_SECONDS, serve, stream

if TYPE_CHECKING:
    from asyncio import Task
    from collections.abc import Callable, Coroutine

CHAT = "/v1/chat/completions"
SHORT_CHUNKS = 4
OPENED_PER_SECOND = 200
SAMPLES = 6
"""How often the server is looked at under load."""


@dataclass(slots=True)
class Outcome:
    """What became of the requests, and what the server was seen to hold.

    Attributes:
        first_tokens: of each short request that was answered in full, seconds until then.
        lost: why the others were not.
        idle_lost: why idle streams were not whole at their end.
        memory: resident bytes of the server, evenly over the load.
        connections: that it held open, likewise.
    """

    first_tokens: list[float] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    idle_lost: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    connections: list[int] = field(default_factory=list)


async def load(port: int, server: psutil.Process, *, idle: int, rate: int, seconds: int) -> Outcome:
    """Open the idle streams, send the requests, and wait for all."""
    outcome = Outcome()
    waiting = await _at_rate(OPENED_PER_SECOND, idle, lambda: stream(port, CHAT, 2, "idle"))
    watching = asyncio.create_task(_watch(server, seconds, outcome))
    sent = await _at_rate(rate, rate * seconds, lambda: stream(port, CHAT, SHORT_CHUNKS, "fast"))
    for answer in await asyncio.gather(*sent, return_exceptions=True):
        if isinstance(answer, BaseException):
            outcome.lost.append(repr(answer))
        else:
            outcome.first_tokens.append(answer)
    await watching
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    outcome.idle_lost = [repr(end) for end in ended if isinstance(end, BaseException)]
    return outcome


async def _at_rate(rate: int, count: int, request: Callable[[], Coroutine[None, None, float]]) -> list[Task[float]]:
    """Begin a request whenever one is due."""
    begun, tasks = time.perf_counter(), []
    for number in range(count):
        await asyncio.sleep(max(0.0, begun + number / rate - time.perf_counter()))
        tasks.append(asyncio.create_task(request()))
    return tasks


async def _watch(server: psutil.Process, seconds: int, outcome: Outcome) -> None:
    for _ in range(SAMPLES):
        outcome.memory.append(server.memory_info().rss)
        outcome.connections.append(len(server.net_connections("tcp")))
        await asyncio.sleep(seconds / SAMPLES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--idle", type=int, default=1000, help="streams that are open and say nothing")
    parser.add_argument("--rate", type=int, default=200, help="short requests per second")
    parser.add_argument("--seconds", type=int, default=60, help="of load")
    options = parser.parse_args()
    if options.seconds + options.idle / OPENED_PER_SECOND > 0.9 * IDLE_SECONDS:
        parser.error(f"idle streams end after {IDLE_SECONDS:.0f} seconds; make the load shorter")
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(there,), daemon=True)
    process.start()
    try:
        server = psutil.Process(process.pid)
        asked = {"idle": options.idle, "rate": options.rate, "seconds": options.seconds}
        show(asyncio.run(load(here.recv(), server, **asked)))
    finally:
        process.terminate()
        process.join()


def show(outcome: Outcome) -> None:
    """Print what was seen."""
    first = sorted(outcome.first_tokens)
    p50, p99 = (1000 * first[int(share * (len(first) - 1))] for share in (0.5, 0.99))
    print(f"short requests: {len(first)} answered in full, {len(outcome.lost)} lost")
    print(f"first token: {p50:.1f} ms at the median, {p99:.1f} ms for 99 %, {1000 * first[-1]:.1f} ms at most")
    print(f"idle streams: {len(outcome.idle_lost)} lost; connections open: {outcome.connections}")
    print(f"server memory, MiB: {[round(size / 2**20, 1) for size in outcome.memory]}")
    for reason in sorted({*outcome.lost, *outcome.idle_lost}):
        print(f"lost: {reason}")


if __name__ == "__main__":
    main()
