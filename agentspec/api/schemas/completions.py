"""Bodies of `/v1/completions`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from agentspec.api.schemas.common import MAX_CHOICES, GenerationFields, TokenCount, TokenId
from agentspec.api.schemas.usage import ReceiptField, Usage
from agentspec.errors import InvalidRequestError

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for this endpoint."""

TokenIds = Annotated[list[TokenId], Field(min_length=1)]


class CompletionRequest(GenerationFields):
    """Text or tokens to be continued as they are."""

    prompt: (
        str
        | Annotated[list[str], Field(min_length=1, max_length=MAX_CHOICES)]
        | TokenIds
        | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_CHOICES)]
    )
    max_tokens: TokenCount | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = Field(default=None, description="start the text with the prompt; not with logprobs")
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    suffix: str | None = Field(default=None, description="text behind the cursor, for models trained to fill in")

    def prompts(self) -> list[str | tuple[int, ...]]:
        """The prompts, each to be continued on its own.

        Raises:
            InvalidRequestError: the fields ask for something that cannot be done.
        """
        if self.best_of is not None and self.best_of != self.choices:
            raise InvalidRequestError("best_of is not supported; leave it out or set it to n", "best_of")
        if self.echo and self.logprobs is not None:
            raise InvalidRequestError("echo together with logprobs is not supported; drop one of them", "echo")
        prompts = self._split()
        if len(prompts) * self.choices > MAX_CHOICES:
            raise InvalidRequestError(
                f"{len(prompts)} prompts with n = {self.choices} are more than {MAX_CHOICES} choices", "n"
            )
        return prompts

    def _split(self) -> list[str | tuple[int, ...]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        prompts: list[str | tuple[int, ...]] = []
        tokens: list[int] = []
        for item in self.prompt:
            if isinstance(item, int):
                tokens.append(item)
            else:
                prompts.append(item if isinstance(item, str) else tuple(item))
        return prompts or [tuple(tokens)]


class CompletionLogprobs(BaseModel):
    """Log-probabilities of a choice's tokens, as parallel lists."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One continuation; in a stream, what a chunk adds to it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None


class Completion(BaseModel):
    """The answer, or one event of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
    system_fingerprint: str | None = None
    agentspec: ReceiptField | None = None
