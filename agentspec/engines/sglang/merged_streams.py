"""The streams of a request's choices as one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from agentspec.engines.base import Chunk

    Item = Chunk | BaseException | None
    """A chunk; what ended a stream; None at its regular end."""


class MergedStreams:
    """Reads several streams at once; chunks come in the order in which they arrive.

    Args:
        streams: one per choice.
    """

    def __init__(self, streams: Sequence[AsyncIterator[Chunk]]) -> None:
        self._queue: asyncio.Queue[Item] = asyncio.Queue()
        self._tasks = [asyncio.create_task(self._pump(stream)) for stream in streams]

    async def chunks(self) -> AsyncIterator[Chunk]:
        """All chunks; raises what any of the streams raises."""
        remaining = len(self._tasks)
        while remaining:
            item = await self._queue.get()
            if item is None:
                remaining -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item

    async def close(self) -> None:
        """Stop reading."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _pump(self, stream: AsyncIterator[Chunk]) -> None:
        try:
            async for chunk in stream:
                await self._queue.put(chunk)
        except Exception as error:  # whatever it is, the reader must not wait for ever
            await self._queue.put(error)
        else:
            await self._queue.put(None)
