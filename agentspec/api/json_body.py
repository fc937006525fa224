"""Reading JSON bodies: strictly, and only when the client says that they are JSON.

A strict parser refuses at the door what would fail further in: NaN and Infinity, invalid UTF-8, lone surrogates
(which no tokenizer can encode), numbers without end, and nesting bombs. Asking for a JSON content type keeps web
pages from driving a loopback server with "simple" cross-origin requests, which browsers send without a preflight.
"""

from __future__ import annotations

from email.message import Message
from json import JSONDecodeError
from typing import TYPE_CHECKING, Any

from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.requests import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from starlette.responses import Response


class JsonRequest(Request):
    """A request whose `json()` is strict."""

    async def json(self) -> Any:
        """The parsed body.

        Raises:
            JSONDecodeError: it is not JSON; the message names the place.
        """
        try:
            return from_json(await self.body(), allow_inf_nan=False)
        except ValueError as error:
            raise JSONDecodeError(f"the request body is not valid JSON: {error}", "", 0) from error


class JsonRoute(APIRoute):
    """A route that takes JSON bodies only and parses them strictly."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler of the route, behind the content type check."""
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            if self.body_field is not None:
                _require_json(request)
            return await handler(JsonRequest(request.scope, request.receive))

        return strict


def _require_json(request: Request) -> None:
    header = Message()
    header["content-type"] = request.headers.get("content-type", "")
    if header["content-type"] == "" or header.get_content_type() != "application/json":
        raise HTTPException(
            415,
            f"content-type is '{header['content-type']}'; send the body as JSON with 'content-type: application/json'",
        )
    charset = header.get_content_charset("utf-8")
    if charset not in {"utf-8", "utf8", "us-ascii"}:
        raise HTTPException(415, f"charset '{charset}' is not supported; JSON is sent as UTF-8")
