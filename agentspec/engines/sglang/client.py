"""SGLang over HTTP: its endpoints, its streams, its errors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx
from httpx_sse import aconnect_sse

from agentspec.engines.sglang.front import RECEIPTS_PATH
from agentspec.errors import (
    AgentspecError,
    ContextOverflowError,
    EngineError,
    EngineUnavailableError,
    InvalidRequestError,
    OverloadedError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

_CONNECT_SECONDS = 5.0
_CALL_SECONDS = 60.0
_DONE = "[DONE]"
_RETRY_SECONDS = 2.0
_OVERFLOW_PHRASES = ("context length", "maximum allowed length", "longer than the model")
_QUEUE_PHRASES = ("queue is full", "max_queued")


class SGLangClient:
    """Talks to one server.

    Args:
        url: its base URL.
        transport: how it is reached, when not over TCP.
    """

    def __init__(self, url: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        timeout = httpx.Timeout(_CALL_SECONDS, connect=_CONNECT_SECONDS)
        self._http = httpx.AsyncClient(base_url=url, timeout=timeout, limits=httpx.Limits(), transport=transport)

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def get(self, path: str) -> Any:
        """The JSON at a path.

        Raises:
            AgentspecError: it is not to be had; the class says why.
        """
        return await self._call("GET", path, None)

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON answer to a JSON body.

        Raises:
            AgentspecError: the server refuses or cannot be reached; the class says why.
        """
        return await self._call("POST", path, body)

    async def text(self, path: str) -> str:
        """The text at a path, likewise."""
        try:
            response = await self._http.get(path)
        except httpx.HTTPError as error:
            raise _unreachable(error) from error
        return response.text

    async def receipt(self, request_id: str) -> dict[str, Any] | None:
        """The worker's receipt of a request that ended; None where there is none (another algorithm runs there)."""
        try:
            found: dict[str, Any] = await self.get(f"{RECEIPTS_PATH}/{request_id}")
        except AgentspecError:
            return None
        return found

    async def abort(self, request_id: str) -> None:
        """End a request at once. A server that cannot be reached has nothing to end."""
        try:
            await self._http.post("/abort_request", json={"rid": request_id})
        except httpx.HTTPError:
            return

    async def stream(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """The events of a streamed answer.

        Raises:
            AgentspecError: the server refuses, breaks off, or reports an error in the stream.
        """
        patient = httpx.Timeout(None, connect=_CONNECT_SECONDS)
        try:
            async with aconnect_sse(self._http, "POST", path, json=body, timeout=patient) as events:
                if events.response.is_error:
                    await events.response.aread()
                    raise _error_of(events.response.status_code, events.response.text)
                async for event in events.aiter_sse():
                    if event.data == _DONE:
                        return
                    data: dict[str, Any] = json.loads(event.data)
                    if "error" in data:
                        raise _error_of(int(data["error"].get("code") or 500), event.data)
                    yield data
        except httpx.HTTPError as error:
            raise _unreachable(error) from error

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        try:
            response = await self._http.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise _unreachable(error) from error
        if response.is_error:
            raise _error_of(response.status_code, response.text)
        return response.json() if response.content else None


def _unreachable(error: httpx.HTTPError) -> EngineUnavailableError:
    return EngineUnavailableError(f"SGLang cannot be reached: {error or type(error).__name__}", _RETRY_SECONDS)


def _error_of(status: int, body: str) -> AgentspecError:
    """Our error for one of SGLang's, whose bodies are flat or nested, JSON or not."""
    message = _message_of(body)
    lower = message.lower()
    if any(phrase in lower for phrase in _QUEUE_PHRASES):
        return OverloadedError(f"the engine's queue is full: {message}", _RETRY_SECONDS)
    if status == httpx.codes.SERVICE_UNAVAILABLE:
        return EngineUnavailableError(message, _RETRY_SECONDS)
    if status < httpx.codes.INTERNAL_SERVER_ERROR:
        overflow = any(phrase in lower for phrase in _OVERFLOW_PHRASES)
        return ContextOverflowError(message) if overflow else InvalidRequestError(message)
    return EngineError(message)


def _message_of(body: str) -> str:
    try:
        content = json.loads(body)
    except ValueError:
        return body.strip() or "SGLang gave no reason"
    inner = content.get("error", content) if isinstance(content, dict) else content
    message = inner.get("message") or inner.get("detail") if isinstance(inner, dict) else inner
    return str(message or body)
