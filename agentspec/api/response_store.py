"""Responses that are kept, so that later ones may continue them and background ones be asked for."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentspec.errors import InvalidRequestError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentspec.api.schemas.responses import InputItem, ResponseBody

MAX_CHARACTERS = 64 * 2**20
"""Text of all kept responses together; the oldest ones are forgotten first."""


@dataclass(slots=True)
class KeptResponse:
    """A response and the conversation up to it.

    Attributes:
        owner: the caller whose it is.
        body: as it was answered; that of a background response changes until it is done.
        items: the conversation, the response's output included.
        characters: size, for the bound on all of them.
        task: the work of a background response.
    """

    owner: str
    body: ResponseBody
    items: Sequence[InputItem]
    characters: int
    task: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        """Whether a background response is still being generated."""
        return self.task is not None and not self.task.done()


class ResponseStore:
    """Keeps responses in memory, each for its owner only.

    Args:
        max_characters: text of all of them together.
    """

    def __init__(self, max_characters: int = MAX_CHARACTERS) -> None:
        self._kept: OrderedDict[str, KeptResponse] = OrderedDict()
        self._max_characters = max_characters
        self._characters = 0

    def keep(self, response: KeptResponse) -> None:
        """Add a response, or replace the one with its id; forget old ones where there is no room."""
        self._forget(response.body.id)
        self._kept[response.body.id] = response
        self._characters += response.characters
        for response_id in list(self._kept):
            if self._characters <= self._max_characters:
                break
            if not self._kept[response_id].running:
                self._forget(response_id)

    def find(self, response_id: str, owner: str) -> KeptResponse:
        """A response of `owner`.

        Raises:
            NotFoundError: there is none; another owner's is answered like one that does not exist.
        """
        response = self._kept.get(response_id)
        if response is None or response.owner != owner:
            raise NotFoundError(f"no response '{response_id}' is kept here", "response_id")
        self._kept.move_to_end(response_id)
        return response

    async def cancel(self, response_id: str, owner: str) -> ResponseBody:
        """End the work on a background response.

        Raises:
            NotFoundError: as `find`.
            InvalidRequestError: it does not run in the background.
        """
        response = self.find(response_id, owner)
        if response.task is None or not response.running:
            raise InvalidRequestError(f"response '{response_id}' does not run in the background", "response_id")
        response.task.cancel()
        await asyncio.wait({response.task})
        if response.body.status == "in_progress":
            response.body.status = "cancelled"
        return response.body

    async def remove(self, response_id: str, owner: str) -> None:
        """Forget a response of `owner`, and end the work on it.

        Raises:
            NotFoundError: as `find`.
        """
        response = self.find(response_id, owner)
        if response.running:
            await self.cancel(response_id, owner)
        self._forget(response_id)

    async def close(self) -> None:
        """End all work."""
        for response in list(self._kept.values()):
            if response.running:
                await self.cancel(response.body.id, response.owner)

    def _forget(self, response_id: str) -> None:
        response = self._kept.pop(response_id, None)
        if response is not None:
            self._characters -= response.characters
