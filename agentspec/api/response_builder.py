"""Builds a response of the Responses API from chunks, event by event; a whole response is what its events add up to."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from agentspec.api.errors import error_object
from agentspec.api.requests import new_id
from agentspec.api.response_items import CustomCallItem, Event, FunctionCallItem, MessageItem, OutputItem, ReasoningItem
from agentspec.api.schemas.responses import (
    IncompleteDetails,
    InputTokensDetails,
    OutputTokensDetails,
    ResponseBody,
    ResponseFailure,
    ResponsesRequest,
    ResponseUsage,
)
from agentspec.api.schemas.usage import ReceiptField
from agentspec.engines.base import Receipt

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agentspec.engines.base import Chunk, FinishReason


def encode(event: Event) -> bytes:
    """A server-sent event."""
    return f"event: {event['type']}\ndata: ".encode() + to_json(event) + b"\n\n"


class ResponseBuilder:
    """Turns the chunks of one choice into events and keeps the response that they describe.

    Args:
        body: what the client asked for.
        model: name of the model.
        response_id: id of the response.

    Attributes:
        response: the response so far.
    """

    def __init__(self, body: ResponsesRequest, model: str, response_id: str) -> None:
        self._custom_tools = body.custom_tools()
        self._wants_receipt = body.agentspec is not None and body.agentspec.receipt
        self._sequence = 0
        self._item: OutputItem | None = None
        self._call_index: int | None = None
        self.response = ResponseBody(
            id=response_id,
            created_at=int(time.time()),
            status="in_progress",
            background=bool(body.background),
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            model=model,
            parallel_tool_calls=body.parallel_tool_calls is not False,
            previous_response_id=body.previous_response_id,
            store=body.store is not False,
            temperature=body.temperature,
            text={"format": body.text_format()},
            tool_choice=body.shown_tool_choice(),
            tools=[tool.model_dump(exclude_none=True) for tool in body.tools or ()],
            top_p=body.top_p,
            user=body.user,
            metadata=body.metadata or {},
        )

    def begin(self) -> Iterator[Event]:
        """The first events."""
        yield self._whole("response.created")
        yield self._whole("response.in_progress")

    def add(self, chunk: Chunk) -> Iterator[Event]:
        """Events of one chunk; those of the last one complete the response."""
        if chunk.reasoning:
            yield from self._write(ReasoningItem, chunk.reasoning)
        if chunk.text:
            yield from self._write(MessageItem, chunk.text)
        for call in chunk.tool_calls:
            yield from self._write_call(call)
        if chunk.finish_reason is not None:
            yield from self._close()
            yield from self._finish(chunk.finish_reason, chunk.receipt or Receipt())

    def fail(self, error: Exception) -> Event:
        """The event of an error; the response keeps what there is of it."""
        shown = error_object(error)
        self.response.status = "failed"
        self.response.error = ResponseFailure(code=shown.code or "server_error", message=shown.message)
        return self._whole("response.failed")

    def _write(self, item_class: type[MessageItem | ReasoningItem], text: str) -> Iterator[Event]:
        if not isinstance(self._item, item_class):
            yield from self._open(item_class())
        yield from self._write_open(text)

    def _write_call(self, call: Mapping[str, Any]) -> Iterator[Event]:
        function = call.get("function") or {}
        index = call.get("index", 0)
        if self._item is None or self._call_index != index:
            name = function.get("name") or ""
            item_class = CustomCallItem if name in self._custom_tools else FunctionCallItem
            yield from self._open(item_class(call.get("id") or new_id("call_"), name))
            self._call_index = index
        if arguments := function.get("arguments"):
            yield from self._write_open(arguments)

    def _open(self, item: OutputItem) -> Iterator[Event]:
        yield from self._close()
        self._item = item
        yield from self._placed(item.begin())

    def _write_open(self, text: str) -> Iterator[Event]:
        if self._item is not None:
            yield from self._placed(self._item.write(text))

    def _close(self) -> Iterator[Event]:
        if self._item is not None:
            yield from self._placed(self._item.end())
            self.response.output.append(self._item.item("completed"))
            self._item = self._call_index = None

    def _finish(self, reason: FinishReason, receipt: Receipt) -> Iterator[Event]:
        self.response.usage = ResponseUsage(
            input_tokens=receipt.prompt_tokens,
            input_tokens_details=InputTokensDetails(cached_tokens=receipt.cached_tokens),
            output_tokens=receipt.completion_tokens,
            output_tokens_details=OutputTokensDetails(),
            total_tokens=receipt.prompt_tokens + receipt.completion_tokens,
        )
        if self._wants_receipt:
            self.response.agentspec = ReceiptField.of([receipt])
        if reason in ("length", "content_filter"):
            self.response.status = "incomplete"
            self.response.incomplete_details = IncompleteDetails(
                reason="max_output_tokens" if reason == "length" else "content_filter"
            )
            yield self._whole("response.incomplete")
        else:
            self.response.status = "completed"
            yield self._whole("response.completed")

    def _whole(self, kind: str) -> Event:
        return self._number({"type": kind, "response": self.response.model_dump()})

    def _placed(self, events: list[Event]) -> Iterator[Event]:
        """Events of the open item, with its place."""
        for event in events:
            yield self._number({**event, "output_index": len(self.response.output)})

    def _number(self, event: Event) -> Event:
        numbered = {**event, "sequence_number": self._sequence}
        self._sequence += 1
        return numbered
