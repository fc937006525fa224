"""Body of `/v1/state`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel

from agentspec.api.schemas.repositories import RepositoryBody
from agentspec.api.schemas.usage import ChoiceReceipt, ReceiptField

if TYPE_CHECKING:
    from agentspec.api.history import PastChoice, Span


class EngineState(BaseModel):
    """What the engine does at this moment."""

    kind: Literal["local", "sglang"]
    ready: bool
    running: int
    waiting: int
    kv_tokens_used: int
    kv_tokens_total: int


class SpanBody(BaseModel):
    """Counts of what ended within one span of time, of all callers. Drafted and accepted are by draft source."""

    begin: int
    choices: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    verify_steps: int
    drafted: dict[str, int]
    accepted: dict[str, int]

    @classmethod
    def of(cls, span: Span) -> SpanBody:
        """The body for `span`."""
        return cls(
            begin=span.begin,
            choices=span.choices,
            prompt_tokens=span.prompt_tokens,
            cached_tokens=span.cached_tokens,
            completion_tokens=span.completion_tokens,
            verify_steps=span.verify_steps,
            drafted=dict(span.drafted),
            accepted=dict(span.accepted),
        )


class PastChoiceBody(BaseModel):
    """One of the caller's choices: when it ended, why, and what it cost. Never its text."""

    ended: float
    finish_reason: str
    receipt: ChoiceReceipt

    @classmethod
    def of(cls, choice: PastChoice) -> PastChoiceBody:
        """The body for `choice`."""
        [receipt] = ReceiptField.of([choice.receipt]).receipts
        return cls(ended=choice.ended, finish_reason=choice.finish_reason, receipt=receipt)


class State(BaseModel):
    """The server as its page shows it. `model` is null until the engine has one."""

    object: Literal["state"] = "state"
    version: str
    time: float
    model: str | None
    context_length: int | None
    engine: EngineState
    repositories: list[RepositoryBody]
    span_seconds: int
    history: list[SpanBody]
    receipts: list[PastChoiceBody]
