"""The state of a SGLang server as its metrics tell it, polled."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from agentspec.errors import AgentspecError

if TYPE_CHECKING:
    from agentspec.engines.sglang.client import SGLangClient

_POLL_SECONDS = 1.0
_NAMES = {
    "sglang:num_running_reqs": "running",
    "sglang:num_queue_reqs": "waiting",
    "sglang:kv_available_tokens": "available",
    "sglang:max_total_num_tokens": "total",
}


class Gauges:
    """What the last poll found, at most a second or two old; zero before the first.

    Args:
        client: of the server.
    """

    def __init__(self, client: SGLangClient) -> None:
        self._client = client
        self._values: dict[str, int] = {}
        self._polling: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin polling."""
        self._polling = asyncio.create_task(self._poll())

    async def stop(self) -> None:
        """End polling. Idempotent."""
        if self._polling is not None:
            self._polling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._polling

    @property
    def running(self) -> int:
        """Requests that are decoded."""
        return self._values.get("running", 0)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return self._values.get("waiting", 0)

    @property
    def kv_tokens(self) -> int:
        """Slots of the cache."""
        return self._values.get("total", 0)

    @property
    def kv_tokens_used(self) -> int:
        """Slots that hold something, prefixes kept for reuse included."""
        return self.kv_tokens - self._values.get("available", self.kv_tokens)

    async def _poll(self) -> None:
        while True:
            with contextlib.suppress(AgentspecError, ValueError):
                self._values = _read(await self._client.text("/metrics"))
            await asyncio.sleep(_POLL_SECONDS)


def _read(text: str) -> dict[str, int]:
    return {
        _NAMES[sample.name]: int(sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in _NAMES
    }
