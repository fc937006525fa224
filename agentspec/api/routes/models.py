"""`/v1/models`, `/tokenize` and `/detokenize`."""

from __future__ import annotations

from fastapi import APIRouter

from agentspec.api.errors import ERROR_RESPONSES
from agentspec.api.json_body import JsonRoute
from agentspec.api.schemas.chat import chat_prompt
from agentspec.api.schemas.models import (
    DetokenizeRequest,
    DetokenizeResponse,
    Model,
    ModelList,
    TokenizeRequest,
    TokenizeResponse,
)
from agentspec.api.services import Services, ServicesOf
from agentspec.errors import InvalidRequestError

router = APIRouter(route_class=JsonRoute, tags=["Model"], responses=ERROR_RESPONSES)

WILDCARDS = frozenset("*?[")
"""Characters that make an alias a pattern."""


@router.get("/v1/models")
async def list_models(services: ServicesOf) -> ModelList:
    """The served model, in a list as OpenAI's API has it, under each name that is no pattern."""
    names = [services.engine.model.id, *services.settings.server.model_aliases]
    return ModelList(data=[_model(services, name) for name in names if not WILDCARDS & set(name)])


@router.get("/v1/models/{model:path}")
async def get_model(model: str, services: ServicesOf) -> Model:
    """One model; its id may hold slashes."""
    return _model(services, services.require_model(model))


@router.post("/tokenize")
async def tokenize(body: TokenizeRequest, services: ServicesOf) -> TokenizeResponse:
    """Token ids of text, or of a conversation rendered by the model's chat template."""
    services.require_model(body.model)
    given = [prompt for prompt in (body.prompt, body.content, body.messages) if prompt is not None]
    if len(given) != 1:
        raise InvalidRequestError("give exactly one of 'prompt', 'content' and 'messages'", "prompt")
    text = given[0]
    if isinstance(text, str):
        tokens = await services.engine.tokenize(text)
    else:
        stable = services.settings.server.stable_prefix
        tokens = await services.engine.tokenize(chat_prompt(text, body.tools, stable_prefix=stable))
    return TokenizeResponse(tokens=tokens, count=len(tokens), max_model_len=services.engine.model.context_length)


@router.post("/detokenize")
async def detokenize(body: DetokenizeRequest, services: ServicesOf) -> DetokenizeResponse:
    """Text of token ids."""
    services.require_model(body.model)
    text = await services.engine.detokenize(body.tokens)
    return DetokenizeResponse(prompt=text, content=text)


def _model(services: Services, name: str) -> Model:
    info = services.engine.model
    return Model(id=name, created=info.created, max_model_len=info.context_length, context_length=info.context_length)
