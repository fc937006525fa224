"""A bound on request bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from agentspec.api.errors import error_response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

DRAINED_BYTES = 64 * 2**20
"""Of a body announced as too large, so much is read and dropped: a client that is cut off while it still sends sees
a broken connection, not the answer."""


class BodyLimitMiddleware:
    """Answers 413 to bodies of more than `limit` bytes, announced or not, without keeping them."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it with 413."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdigit() and int(announced) > self._limit:
            await _drain(receive)
            await error_response(self._refusal(), scope["path"])(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._limit:
                await _drain(receive, message)
                raise self._refusal()
            return message

        await self._app(scope, counted, send)

    def _refusal(self) -> HTTPException:
        return HTTPException(413, f"the request body is larger than {self._limit} bytes; send less")


async def _drain(receive: Receive, message: Message | None = None) -> None:
    dropped = 0
    while dropped < DRAINED_BYTES and (message is None or message.get("more_body", False)):
        message = await receive()
        dropped += len(message.get("body", b""))
