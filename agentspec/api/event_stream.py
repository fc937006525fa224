"""Server-sent events over ASGI, and the watch for clients that leave.

Plain asyncio on purpose: after a disconnect the producer is cancelled once and its clean-up (closing the engine's
stream) is awaited to its end.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, TypeVar

from starlette.responses import Response

from agentspec.api.errors import error_response
from agentspec.errors import AgentspecError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine

    from starlette.types import Receive, Scope, Send

T = TypeVar("T")

KEEPALIVE = b": keepalive\n\n"
CLIENT_CLOSED_REQUEST = 499
"""nginx's status for a client that left before the answer; seen in the access log and metrics only."""


class ClientGoneError(Exception):
    """The client closed the connection before its answer was ready."""


async def until_disconnect(receive: Receive, work: Coroutine[object, object, T], freed: Callable[[float], None]) -> T:
    """Await `work`; cancel it as soon as the client leaves.

    Args:
        receive: the ASGI channel, its request body already read.
        work: what the client waits for.
        freed: told the seconds from the disconnect until the cancelled work was gone.

    Raises:
        ClientGoneError: the client left.
    """
    task = asyncio.create_task(work)
    watch = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        left = time.perf_counter()
        await _cancel(task)
        freed(time.perf_counter() - left)
        raise ClientGoneError
    finally:
        await _cancel(watch)
        await _cancel(task)


class EventStream(Response):
    """Sends events as they come and comments while there are none.

    The status line goes out with the first event or the first comment, whichever is first: an error before that
    is answered with its own HTTP status, a later one as an event.

    Args:
        events: encoded events, blank line included.
        failure: encodes the event of an error inside the stream.
        keepalive_seconds: silence after which a comment is sent.
        progressing: asked before each comment, since a comment vouches that the engine is at work.
        freed: told the seconds from a disconnect until the producer of `events` was gone.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        failure: Callable[[Exception], bytes],
        keepalive_seconds: float,
        progressing: Callable[[], bool],
        freed: Callable[[float], None],
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._events = events
        self._failure = failure
        self._keepalive_seconds = keepalive_seconds
        self._progressing = progressing
        self._freed = freed
        self._started = False
        self._ended = False
        self._last_sent = time.monotonic()
        self._sending = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the stream until its end or the client's."""
        producer = asyncio.create_task(self._produce(scope, receive, send))
        keepalive = asyncio.create_task(self._keep_alive(send))
        watch = asyncio.create_task(_disconnect(receive))
        try:
            await asyncio.wait({producer, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not producer.done():
                left = time.perf_counter()
                await _cancel(producer)
                self._freed(time.perf_counter() - left)
                if not self._started:
                    raise ClientGoneError
            elif not producer.cancelled():
                producer.result()
        finally:
            for task in (keepalive, watch, producer):
                await _cancel(task)

    async def _produce(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with aclosing(self._events) as events:
                async for event in events:
                    await self._send(send, event)
        except Exception as error:
            async with self._sending:
                answered = self._started
                if not answered:
                    self._started = self._ended = True
                    await error_response(error, scope["path"])(scope, receive, send)
            if answered:
                await self._send(send, self._failure(error), last=True)
            if not isinstance(error, AgentspecError):
                raise
        else:
            await self._send(send, b"", last=True)

    async def _keep_alive(self, send: Send) -> None:
        while True:
            idle = time.monotonic() - self._last_sent
            if idle < self._keepalive_seconds:
                await asyncio.sleep(self._keepalive_seconds - idle)
            elif self._progressing():
                await self._send(send, KEEPALIVE)
            else:
                await asyncio.sleep(self._keepalive_seconds)

    async def _send(self, send: Send, data: bytes, last: bool = False) -> None:
        async with self._sending:
            if self._ended:
                return
            if not self._started:
                self._started = True
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            self._ended = last
            self._last_sent = time.monotonic()
            await send({"type": "http.response.body", "body": data, "more_body": not last})


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(task: asyncio.Task[T]) -> None:
    """Cancel a task and wait until it has cleaned up; an error it ends with meanwhile is of no use any more."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()
