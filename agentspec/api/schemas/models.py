"""Bodies of `/v1/models`, `/tokenize` and `/detokenize`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from agentspec.api.schemas.chat import Message
from agentspec.api.schemas.common import RequestModel, TokenId
from agentspec.api.schemas.tools import Tool


class Model(BaseModel):
    """A served model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "agentspec"
    max_model_len: int
    context_length: int


class ModelList(BaseModel):
    """All served models."""

    object: Literal["list"] = "list"
    data: list[Model]


class TokenizeRequest(RequestModel):
    """Text (`prompt`, or `content` as llama.cpp's clients call it) or a conversation; exactly one of them."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    tools: list[Tool] | None = None


class TokenizeResponse(BaseModel):
    """Token ids as the target would see them."""

    tokens: list[int]
    count: int
    max_model_len: int


class DetokenizeRequest(RequestModel):
    """Token ids."""

    model: str | None = None
    tokens: list[TokenId]


class DetokenizeResponse(BaseModel):
    """Their text, under the names that vLLM's and llama.cpp's clients read."""

    prompt: str
    content: str
