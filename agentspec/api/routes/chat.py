"""`POST /v1/chat/completions`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from agentspec.api.chat_answers import chat_answer
from agentspec.api.errors import ERROR_RESPONSES
from agentspec.api.json_body import JsonRoute
from agentspec.api.schemas.chat import ChatCompletion, ChatCompletionRequest
from agentspec.api.services import CallerOf, ServicesOf
from agentspec.api.streaming import STREAM_RESPONSE

router = APIRouter(route_class=JsonRoute, tags=["OpenAI"], responses=ERROR_RESPONSES)


@router.post("/v1/chat/completions", response_model=ChatCompletion, responses=STREAM_RESPONSE)
async def create_chat_completion(
    body: ChatCompletionRequest, request: Request, services: ServicesOf, caller: CallerOf
) -> Response:
    """Continue a conversation."""
    sampling = body.sampling(body.alternatives, body.limit)
    prompt = body.prompt(stable_prefix=services.settings.server.stable_prefix)
    return await chat_answer(
        services, caller, body, request, prompt=prompt, sampling=sampling, custom_tools=body.custom_tools()
    )
