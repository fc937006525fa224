"""Answers in the shape of Anthropic's Messages API: content blocks, whole or as events."""

from __future__ import annotations

import uuid
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from agentspec.api.errors import ANTHROPIC_PATH, error_body
from agentspec.api.schemas.anthropic import STOP_REASONS, AnthropicAnswer, AnthropicUsage
from agentspec.api.schemas.usage import ReceiptField
from agentspec.engines.base import Receipt, arguments_object

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping

    from agentspec.api.generation import Choice
    from agentspec.engines.base import Chunk


def whole_message(choice: Choice, call_id: str, model: str, with_receipt: bool) -> AnthropicAnswer:
    """The answer of a call that does not stream."""
    answer = AnthropicAnswer(
        id=call_id,
        type="message",
        role="assistant",
        model=model,
        content=list(_blocks(choice)),
        stop_reason=_stop_reason(choice),
        stop_sequence=choice.stop_sequence,
        usage=AnthropicUsage.of(choice.receipt),
    )
    if with_receipt:
        answer.agentspec = ReceiptField.of([choice.receipt])
    return answer


def _stop_reason(ended: Choice | Chunk) -> str:
    """Why an answer ended, in Anthropic's words."""
    if ended.stop_sequence is not None:
        return "stop_sequence"
    return STOP_REASONS[ended.finish_reason or "stop"]


def _blocks(choice: Choice) -> Iterator[dict[str, Any]]:
    if choice.reasoning:
        yield {"type": "thinking", "thinking": choice.reasoning, "signature": ""}
    if choice.text or not (choice.reasoning or choice.tool_calls):
        yield {"type": "text", "text": choice.text}
    for call in choice.tool_calls:
        function = call["function"]
        yield {
            "type": "tool_use",
            "id": call["id"],
            "name": function["name"],
            "input": arguments_object(function["arguments"]),
        }


def error_event(error: Exception) -> bytes:
    """The event of an error inside a stream."""
    return b"event: error\ndata: " + error_body(error, ANTHROPIC_PATH) + b"\n\n"


class MessageStream:
    """Turns chunks into events: one content block open at a time, each started, filled and stopped in order.

    Args:
        call_id: id of the message.
        model: name of the model.
        prompt_tokens: length of the prompt.
        with_receipt: whether the last delta carries the receipt.
    """

    def __init__(self, call_id: str, model: str, prompt_tokens: int, with_receipt: bool) -> None:
        self._call_id = call_id
        self._model = model
        self._prompt_tokens = prompt_tokens
        self._with_receipt = with_receipt
        self._opened = -1
        self._open: object = None

    async def events(self, chunks: AsyncGenerator[Chunk, None]) -> AsyncGenerator[bytes, None]:
        """The events of one choice; the first comes with the first chunk, so that earlier errors have a status."""
        begun = False
        async with aclosing(chunks):
            async for chunk in chunks:
                if not begun:
                    begun = True
                    yield self._start()
                for event in self._chunk(chunk):
                    yield event

    def _start(self) -> bytes:
        usage = AnthropicUsage(
            input_tokens=self._prompt_tokens,
            cache_creation_input_tokens=0,
            cache_read_input_tokens=0,
            output_tokens=0,
        )
        message = AnthropicAnswer(
            id=self._call_id,
            type="message",
            role="assistant",
            model=self._model,
            content=[],
            stop_reason=None,
            stop_sequence=None,
            usage=usage,
        )
        return _event("message_start", message=message.model_dump(exclude_unset=True))

    def _chunk(self, chunk: Chunk) -> Iterator[bytes]:
        if chunk.reasoning:
            yield from self._switch("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            yield self._delta({"type": "thinking_delta", "thinking": chunk.reasoning})
        if chunk.text:
            yield from self._switch("text", {"type": "text", "text": ""})
            yield self._delta({"type": "text_delta", "text": chunk.text})
        for call in chunk.tool_calls:
            yield from self._tool_call(call)
        if chunk.finish_reason is not None:
            if self._opened < 0:
                yield from self._switch("text", {"type": "text", "text": ""})
            yield from self._close()
            receipt = chunk.receipt or Receipt()
            extra = {"agentspec": ReceiptField.of([receipt]).model_dump()} if self._with_receipt else {}
            delta = {"stop_reason": _stop_reason(chunk), "stop_sequence": chunk.stop_sequence}
            yield _event("message_delta", delta=delta, usage=AnthropicUsage.of(receipt).model_dump(), **extra)
            yield _event("message_stop")

    def _tool_call(self, call: Mapping[str, Any]) -> Iterator[bytes]:
        function = call.get("function") or {}
        index = call.get("index", 0)
        block: dict[str, Any] = {
            "type": "tool_use",
            "id": call.get("id") or f"toolu_{uuid.uuid4().hex}",
            "name": function.get("name") or "",
            "input": {},
        }
        yield from self._switch(("tool", index), block)
        if arguments := function.get("arguments"):
            yield self._delta({"type": "input_json_delta", "partial_json": arguments})

    def _switch(self, kind: object, block: dict[str, Any]) -> Iterator[bytes]:
        """Make sure that the open block is of this kind."""
        if self._open == kind:
            return
        yield from self._close()
        self._opened += 1
        self._open = kind
        yield _event("content_block_start", index=self._opened, content_block=block)

    def _close(self) -> Iterator[bytes]:
        if self._open is not None:
            self._open = None
            yield _event("content_block_stop", index=self._opened)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._opened, delta=delta)


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: ".encode() + to_json({"type": kind, **fields}) + b"\n\n"
