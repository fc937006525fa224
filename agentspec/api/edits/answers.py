"""Answers of the edit endpoints, whole or streamed, from the model or without it."""

from __future__ import annotations

import time
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from starlette.responses import Response

from agentspec.api.event_stream import until_disconnect
from agentspec.api.generation import generate
from agentspec.api.requests import engine_requests, new_id
from agentspec.api.schemas.edits import EditAnswer, EditChunk
from agentspec.api.schemas.usage import ReceiptField, Usage
from agentspec.api.streaming import DONE, event, stream
from agentspec.engines.base import Receipt

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from typing import Literal

    from starlette.requests import Request

    from agentspec.api.edits.answer_text import AnswerText
    from agentspec.api.edits.prompts import EditPrompt
    from agentspec.api.schemas.edits import FileFields, Method
    from agentspec.api.services import Services
    from agentspec.engines.base import Chunk, FinishReason


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of the answer; the last one has a finish reason."""

    text: str
    finish_reason: FinishReason | None = None
    receipt: Receipt | None = None


class EditReply:
    """The reply to one call.

    Args:
        services: of the application.
        kind: `edit` or `apply`.
        fields: what the client asked for.

    Raises:
        NotFoundError: another model is asked for.
    """

    def __init__(self, services: Services, kind: Literal["edit", "apply"], fields: FileFields) -> None:
        self._services = services
        self._kind: Literal["edit", "apply"] = kind
        self._fields = fields
        self._id = new_id(f"{kind}-")
        self._created = int(time.time())
        self._model = services.require_model(fields.model)

    async def written(self, request: Request, caller: str, prompt: EditPrompt, answer: AnswerText) -> Response:
        """What the model writes.

        Args:
            request: tells when the client leaves.
            caller: who asks.
            prompt: for the model.
            answer: makes the client's text of the model's.

        Raises:
            AgentspecError: the model cannot be asked.
        """
        fields = self._fields.generation(prompt.predicted)
        sampling = replace(fields.sampling(None, self._fields.max_tokens), stop=(f"\n{prompt.fence}",))
        requests = engine_requests(
            self._services, caller=caller, fields=fields, call_id=self._id, prompts=[prompt.chat], sampling=sampling
        )
        chunks = generate(self._services.engine, self._services.metrics, requests)
        return await self._respond(request, _pieces(chunks, answer), "model")

    async def given(self, request: Request, text: str) -> Response:
        """A text that needed no model."""
        return await self._respond(request, _whole(text), "exact")

    async def _respond(self, request: Request, pieces: AsyncGenerator[_Piece, None], method: Method) -> Response:
        if self._fields.stream:
            return stream(self._services, self._events(pieces, method))
        answer = await until_disconnect(
            request.receive, self._collect(pieces, method), self._services.metrics.client_left
        )
        return Response(answer.model_dump_json(exclude_unset=True), media_type="application/json")

    async def _collect(self, pieces: AsyncGenerator[_Piece, None], method: Method) -> EditAnswer:
        texts: list[str] = []
        last = _Piece("")
        async with aclosing(pieces):
            async for last in pieces:
                texts.append(last.text)
        receipt = last.receipt or Receipt()
        answer = EditAnswer(
            id=self._id,
            object=self._kind,
            created=self._created,
            model=self._model,
            path=self._fields.path,
            output=self._fields.output or "file",
            content="".join(texts),
            method=method,
            finish_reason=last.finish_reason or "stop",
            usage=Usage.of([receipt], 1),
        )
        if self._wants_receipt:
            answer.agentspec = ReceiptField.of([receipt])
        return answer

    async def _events(self, pieces: AsyncGenerator[_Piece, None], method: Method) -> AsyncGenerator[bytes, None]:
        async with aclosing(pieces):
            async for piece in pieces:
                chunk = EditChunk(
                    id=self._id,
                    object="edit.chunk" if self._kind == "edit" else "apply.chunk",
                    created=self._created,
                    model=self._model,
                    method=method,
                    delta=piece.text,
                    finish_reason=piece.finish_reason,
                )
                if piece.receipt is not None:
                    chunk.usage = Usage.of([piece.receipt], 1)
                    if self._wants_receipt:
                        chunk.agentspec = ReceiptField.of([piece.receipt])
                yield event(chunk)
        yield DONE

    @property
    def _wants_receipt(self) -> bool:
        return self._fields.agentspec is not None and self._fields.agentspec.receipt


async def _pieces(chunks: AsyncGenerator[Chunk, None], answer: AnswerText) -> AsyncGenerator[_Piece, None]:
    """The answer's text as the model writes it.

    The first piece comes with the first chunk, so that errors before it have an HTTP status.
    """
    head = answer.begin()
    async with aclosing(chunks):
        async for chunk in chunks:
            text = head + answer.push(chunk.text)
            head = ""
            if chunk.finish_reason is not None:
                text += answer.end(complete=chunk.finish_reason == "stop")
                yield _Piece(text, chunk.finish_reason, chunk.receipt or Receipt())
            elif text:
                yield _Piece(text)


async def _whole(text: str) -> AsyncGenerator[_Piece, None]:
    yield _Piece(text, "stop", Receipt(speculation=False))
