"""Request ids, the access log, request metrics, and the last net under unexpected errors."""

from __future__ import annotations

import re
import time
import traceback
import uuid
from typing import TYPE_CHECKING

import structlog
from starlette.datastructures import Headers, MutableHeaders

from agentspec.api.errors import error_response
from agentspec.api.event_stream import CLIENT_CLOSED_REQUEST, ClientGoneError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from agentspec.api.metrics import Metrics

HEADER = "x-request-id"
ACCEPTABLE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
UNMATCHED = "unmatched"
"""Route label of requests that no route took; their paths would make labels without end."""

log = structlog.get_logger("agentspec.access")


class AccessMiddleware:
    """Gives each request an id, times it, logs one line about it, and answers what nothing else did.

    The line holds method, route, status, duration and request id: never a body, a query string or a header.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        request_id = given if ACCEPTABLE_ID.fullmatch(given) else uuid.uuid4().hex
        status = 0
        complete = False

        async def send_with_id(message: Message) -> None:
            nonlocal status, complete
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[HEADER] = request_id
            complete = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        begun = time.perf_counter()
        try:
            await self._app(scope, receive, send_with_id)
        except ClientGoneError:
            status = CLIENT_CLOSED_REQUEST
        except Exception as error:
            # Formatted here: a renderer that shows local variables would show prompts.
            log.error("request failed", request_id=request_id, traceback=traceback.format_exc())
            if not status:
                await error_response(error, scope["path"])(scope, receive, send_with_id)
            elif not complete:
                raise
        finally:
            self._record(scope, status or CLIENT_CLOSED_REQUEST, request_id, time.perf_counter() - begun)

    def _record(self, scope: Scope, status: int, request_id: str, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", UNMATCHED)
        self._metrics.requests.labels(scope["method"], route, status).inc()
        self._metrics.request_seconds.observe(seconds)
        log.info(
            "request",
            method=scope["method"],
            route=route,
            status=status,
            milliseconds=round(seconds * 1000, 1),
            request_id=request_id,
        )
