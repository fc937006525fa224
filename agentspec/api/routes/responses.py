"""OpenAI's Responses API: `/v1/responses`."""

from __future__ import annotations

import asyncio
import traceback
from contextlib import aclosing
from typing import TYPE_CHECKING

import structlog
from fastapi import APIRouter, Request
from starlette.responses import Response

from agentspec.api.errors import ERROR_RESPONSES
from agentspec.api.event_stream import until_disconnect
from agentspec.api.generation import generate
from agentspec.api.json_body import JsonRoute
from agentspec.api.requests import engine_requests, new_id
from agentspec.api.response_builder import ResponseBuilder, encode
from agentspec.api.response_store import KeptResponse
from agentspec.api.schemas.responses import INPUT_ITEMS, ResponseBody, ResponseDeleted, ResponsesRequest
from agentspec.api.services import CallerOf, Services, ServicesOf
from agentspec.api.streaming import STREAM_RESPONSE, stream
from agentspec.errors import AgentspecError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from agentspec.api.schemas.responses import InputItem
    from agentspec.engines.base import Chunk

router = APIRouter(prefix="/v1/responses", route_class=JsonRoute, tags=["Responses"], responses=ERROR_RESPONSES)

log = structlog.get_logger("agentspec.responses")


@router.post("", response_model=ResponseBody, responses=STREAM_RESPONSE)
async def create_response(body: ResponsesRequest, request: Request, services: ServicesOf, caller: CallerOf) -> Response:
    """Continue a conversation, given whole or by the id of an earlier response."""
    if body.background and (body.stream or body.store is False):
        raise InvalidRequestError(
            "a background response is kept and asked for; leave out stream and store", "background"
        )
    model = services.require_model(body.model)
    earlier = services.responses.find(body.previous_response_id, caller).items if body.previous_response_id else []
    chat = body.as_chat(earlier)
    response_id = new_id("resp_")
    requests = engine_requests(
        services,
        caller=caller,
        fields=chat,
        call_id=response_id,
        prompts=[chat.prompt(stable_prefix=services.settings.server.stable_prefix)],
        sampling=chat.sampling(None, chat.max_tokens),
    )
    work = _Work(services, caller, ResponseBuilder(body, model, response_id), [*earlier, *body.items()])
    chunks = generate(services.engine, services.metrics, requests)
    if body.stream:
        return stream(services, work.events(chunks), lambda error: encode(work.builder.fail(error)))
    if body.background:
        work.start(chunks)
    else:
        await until_disconnect(request.receive, work.run(chunks), services.metrics.client_left)
    return Response(work.builder.response.model_dump_json(), media_type="application/json")


@router.get("/{response_id}")
async def get_response(response_id: str, services: ServicesOf, caller: CallerOf) -> ResponseBody:
    """A kept response; one in the background may still be in progress."""
    return services.responses.find(response_id, caller).body


@router.delete("/{response_id}")
async def delete_response(response_id: str, services: ServicesOf, caller: CallerOf) -> ResponseDeleted:
    """Forget a response."""
    await services.responses.remove(response_id, caller)
    return ResponseDeleted(id=response_id)


@router.post("/{response_id}/cancel")
async def cancel_response(response_id: str, services: ServicesOf, caller: CallerOf) -> ResponseBody:
    """End a background response."""
    return await services.responses.cancel(response_id, caller)


class _Work:
    """The generation of one response.

    Args:
        services: of the application.
        owner: who asked.
        builder: builds the response.
        items: the conversation up to it.
    """

    def __init__(self, services: Services, owner: str, builder: ResponseBuilder, items: Sequence[InputItem]) -> None:
        self.builder = builder
        self._services = services
        self._owner = owner
        self._items = items

    async def events(self, chunks: AsyncGenerator[Chunk, None]) -> AsyncGenerator[bytes, None]:
        """All events; the first ones come with the first chunk, so that earlier errors have a status."""
        begun = False
        async with aclosing(chunks):
            async for chunk in chunks:
                if not begun:
                    begun = True
                    for event in self.builder.begin():
                        yield encode(event)
                events = list(self.builder.add(chunk))
                if chunk.finish_reason is not None:
                    # Before the client learns that it is complete, and may continue it.
                    self._keep()
                for event in events:
                    yield encode(event)

    async def run(self, chunks: AsyncGenerator[Chunk, None]) -> None:
        """Generate to the end."""
        async with aclosing(chunks):
            async for chunk in chunks:
                for _ in self.builder.add(chunk):
                    pass
        self._keep()

    def start(self, chunks: AsyncGenerator[Chunk, None]) -> None:
        """Generate in the background."""
        kept = KeptResponse(self._owner, self.builder.response, [], 0, asyncio.create_task(self._background(chunks)))
        self._services.responses.keep(kept)

    async def _background(self, chunks: AsyncGenerator[Chunk, None]) -> None:
        try:
            await self.run(chunks)
        except Exception as error:
            if not isinstance(error, AgentspecError):
                log.error("background response failed", traceback=traceback.format_exc())
            self.builder.fail(error)
            self._keep()

    def _keep(self) -> None:
        response = self.builder.response
        if response.store:
            items = [*self._items, *INPUT_ITEMS.validate_python(response.output)]
            characters = sum(len(item.model_dump_json()) for item in items)
            self._services.responses.keep(KeptResponse(self._owner, response, items, characters))
