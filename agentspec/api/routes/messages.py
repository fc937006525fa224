"""Anthropic's Messages API: `/v1/messages` and `/v1/messages/count_tokens`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from agentspec.api.anthropic_answers import MessageStream, error_event, whole_message
from agentspec.api.errors import AnthropicErrorResponse
from agentspec.api.event_stream import until_disconnect
from agentspec.api.generation import collect, generate
from agentspec.api.json_body import JsonRoute
from agentspec.api.requests import engine_requests, new_id
from agentspec.api.schemas.anthropic import AnthropicAnswer, CountTokensRequest, MessagesRequest, TokenCountResponse
from agentspec.api.schemas.chat import chat_prompt
from agentspec.api.services import CallerOf, ServicesOf
from agentspec.api.streaming import STREAM_RESPONSE, stream

router = APIRouter(
    prefix="/v1/messages",
    route_class=JsonRoute,
    tags=["Anthropic"],
    responses={
        "4XX": {"model": AnthropicErrorResponse, "description": "The request was refused."},
        "5XX": {"model": AnthropicErrorResponse, "description": "The server could not serve the request."},
    },
)


@router.post("", response_model=AnthropicAnswer, responses=STREAM_RESPONSE)
async def create_message(body: MessagesRequest, request: Request, services: ServicesOf, caller: CallerOf) -> Response:
    """Continue a conversation."""
    model = services.require_model(body.model)
    chat = body.as_chat()
    prompt = chat.prompt(stable_prefix=services.settings.server.stable_prefix)
    call_id = new_id("msg_")
    requests = engine_requests(
        services,
        caller=caller,
        fields=chat,
        call_id=call_id,
        prompts=[prompt],
        sampling=chat.sampling(None, chat.max_tokens),
    )
    if body.stream:
        prompt_tokens = len(await services.engine.tokenize(prompt))
        encoder = MessageStream(call_id, model, prompt_tokens, chat.wants_receipt)
        chunks = generate(services.engine, services.metrics, requests)
        return stream(services, encoder.events(chunks), error_event)
    chunks = generate(services.engine, services.metrics, requests)
    [choice] = await until_disconnect(request.receive, collect(chunks, 1), services.metrics.client_left)
    answer = whole_message(choice, call_id, model, chat.wants_receipt)
    return Response(answer.model_dump_json(exclude_unset=True), media_type="application/json")


@router.post("/count_tokens")
async def count_tokens(body: CountTokensRequest, services: ServicesOf) -> TokenCountResponse:
    """Tokens of a conversation as the model would see it."""
    services.require_model(body.model)
    stable = services.settings.server.stable_prefix
    prompt = chat_prompt(body.conversation(), body.offered_tools(), stable_prefix=stable)
    tokens = await services.engine.tokenize(prompt)
    return TokenCountResponse(input_tokens=len(tokens))
