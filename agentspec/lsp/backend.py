"""The agentspec server, as the language server asks it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx
from httpx_sse import SSEError, aconnect_sse

from agentspec.errors import AgentspecError
from agentspec.lsp.inline import Suggestion, trim

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from agentspec.lsp.inline import Cursor

TIMEOUT = httpx.Timeout(10.0, read=300.0)
"""Seconds; an edit of a long file on a laptop takes minutes until its first token."""


class BackendError(AgentspecError):
    """The server did not do what it was asked for.

    Args:
        message: what it said.
        param: the request field that it named.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class Backend:
    """One server.

    Args:
        url: its base URL, without `/v1`.
        key: its key; None: it asks for none.
        max_tokens: longest inline completion.
    """

    def __init__(self, url: str, key: str | None, max_tokens: int) -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.AsyncClient(base_url=url, headers=headers, timeout=TIMEOUT)
        self._max_tokens = max_tokens
        self._fills_in = True

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def complete(self, cursor: Cursor, path: str | None, repository: str | None) -> Suggestion:
        """What to insert at `cursor`.

        A model that cannot fill in the middle continues the text before the cursor instead.

        Args:
            cursor: the text around the cursor.
            path: of the document in the repository, None outside of one.
            repository: folder whose index may draft.

        Raises:
            BackendError: no answer, or an error.
        """
        body: dict[str, Any] = {
            "prompt": cursor.prompt,
            "max_tokens": self._max_tokens,
            "temperature": 0,
            "stop": ["\n"] if cursor.within_line else ["\n\n\n"],
            "repository": repository,
            "edited_path": path,
        }
        try:
            answer = await self._post(
                "/v1/completions", {**body, **({"suffix": cursor.suffix} if self._fills_in else {})}
            )
        except BackendError as error:
            if error.param != "suffix":
                raise
            self._fills_in = False
            answer = await self._post("/v1/completions", body)
        [choice] = answer["choices"]
        return Suggestion(answer["id"], trim(choice["text"], cursor, complete=choice["finish_reason"] != "length"))

    async def edit(self, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Events of `/v1/edits`, as they come.

        Raises:
            BackendError: no answer, an error, or an end before the file was complete.
        """
        finish_reason = None
        try:
            request = {**body, "stream": True}
            async with aconnect_sse(self._http, "POST", "/v1/edits", json=request) as source:
                if source.response.is_error:
                    await source.response.aread()
                    raise _error(source.response)
                async for event in source.aiter_sse():
                    if event.data == "[DONE]":
                        break
                    chunk = json.loads(event.data)
                    if "error" in chunk:
                        raise BackendError(chunk["error"]["message"])
                    finish_reason = chunk["finish_reason"] or finish_reason
                    yield chunk
        except (httpx.HTTPError, SSEError) as error:
            raise BackendError(f"no answer from {self._http.base_url}: {error!r}") from error
        if finish_reason != "stop":
            raise BackendError(f"the new file is not complete ({finish_reason}); nothing was changed")

    async def register(self, folder: str) -> None:
        """Have a repository indexed.

        Raises:
            BackendError: the server may not index it.
        """
        await self._post("/v1/repositories", {"path": folder})

    async def accepted(self, answer_id: str) -> None:
        """Tell that a suggestion was taken.

        Raises:
            BackendError: no answer, or an error.
        """
        await self._post("/v1/feedback", {"id": answer_id, "accepted": True})

    async def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        try:
            response = await self._http.post(path, json=body)
        except httpx.HTTPError as error:
            raise BackendError(f"no answer from {self._http.base_url}: {error!r}") from error
        if response.is_error:
            raise _error(response)
        return dict(response.json())


def _error(response: httpx.Response) -> BackendError:
    try:
        error = response.json()["error"]
        return BackendError(error["message"], error.get("param"))
    except (ValueError, LookupError, TypeError):
        return BackendError(f"the server answered {response.status_code}")
