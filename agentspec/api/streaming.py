"""What the streams of all endpoints share: the response, keepalive and errors inside the stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from agentspec.api.errors import error_body
from agentspec.api.event_stream import EventStream
from agentspec.api.schemas.usage import ReceiptField, Usage
from agentspec.engines.base import Receipt

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator

    from pydantic import BaseModel

    from agentspec.api.schemas.chat import ChatCompletionChunk
    from agentspec.api.schemas.common import GenerationFields
    from agentspec.api.schemas.completions import Completion
    from agentspec.api.services import Services
    from agentspec.engines.base import Chunk, Engine

    StreamBody = ChatCompletionChunk | Completion

DONE = b"data: [DONE]\n\n"
"""Last event of OpenAI's streams."""

STREAM_RESPONSE: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer; with `stream: true` as server-sent events whose data are chunks, `[DONE]` last.",
        "content": {
            "text/event-stream": {"itemSchema": {"type": "object", "properties": {"data": {"type": "string"}}}}
        },
    }
}
"""The streamed form of an answer, for the OpenAPI schema."""


def event(body: BaseModel) -> bytes:
    """A server-sent event of the fields that were set in `body`."""
    return b"data: " + body.model_dump_json(exclude_unset=True).encode() + b"\n\n"


def error_event(error: Exception) -> bytes:
    """OpenAI's event of an error inside a stream."""
    return b"data: " + error_body(error, "/v1") + b"\n\n"


class StreamEncoder(ABC):
    """Turns the chunks of one call into OpenAI's events; the endpoints differ in the bodies only.

    Args:
        fields: what the client asked for.
        choices: choices of the call, over all its prompts.
    """

    def __init__(self, fields: GenerationFields, choices: int) -> None:
        self._fields = fields
        self._choices = choices
        self._receipts: dict[int, Receipt] = {}

    @abstractmethod
    def bodies(self, chunk: Chunk) -> Iterator[StreamBody]:
        """What one chunk says, in bodies with their fields set explicitly; nothing where it says nothing."""

    @abstractmethod
    def usage_body(self, usage: Usage) -> StreamBody:
        """The last body of a stream whose client asked for usage: no choices."""

    async def events(self, chunks: AsyncGenerator[Chunk, None]) -> AsyncGenerator[bytes, None]:
        """Events of all chunks, the usage when asked for, the receipt on the last body, then `[DONE]`."""
        async with aclosing(chunks):
            async for chunk in chunks:
                if chunk.finish_reason is not None:
                    self._receipts[chunk.index] = chunk.receipt or Receipt()
                for body in self.bodies(chunk):
                    if self._fields.wants_usage:
                        body.usage = None
                    elif self._is_last(body):
                        self._add_receipt(body)
                    yield event(body)
        if self._fields.wants_usage:
            body = self.usage_body(Usage.of(self._ordered_receipts(), self._fields.choices))
            self._add_receipt(body)
            yield event(body)
        yield DONE

    def _is_last(self, body: StreamBody) -> bool:
        return len(self._receipts) == self._choices and body.choices[0].finish_reason is not None

    def _add_receipt(self, body: StreamBody) -> None:
        if self._fields.wants_receipt:
            body.agentspec = ReceiptField.of(self._ordered_receipts())

    def _ordered_receipts(self) -> list[Receipt]:
        return [self._receipts[index] for index in range(self._choices)]


def stream(
    services: Services,
    events: AsyncGenerator[bytes, None],
    failure: Callable[[Exception], bytes] = error_event,
) -> EventStream:
    """The response that sends `events`, and `failure` of an error among them."""
    return EventStream(
        events,
        failure=failure,
        keepalive_seconds=services.settings.server.keepalive_seconds,
        progressing=_ProgressWatch(services.engine),
        freed=services.metrics.client_left,
    )


class _ProgressWatch:
    """Tells, when called, whether the engine did any work since the last call."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._seen = engine.stats().progress

    def __call__(self) -> bool:
        stats = self._engine.stats()
        if stats.progress is None:
            return stats.ready
        before, self._seen = self._seen, stats.progress
        return stats.progress != before
