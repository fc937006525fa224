"""What the ends of SGLang's streams mean in the engine contract."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentspec.engines.base import Receipt
from agentspec.errors import EngineError, EngineUnavailableError, InvalidRequestError, OverloadedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentspec.engines.base import FinishReason
    from agentspec.errors import AgentspecError

_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
    "abort": "abort",
}
_QUEUE_FULL = "queue is full"


def finish_reason(kind: str) -> FinishReason:
    """SGLang's reason in the contract's words; what is new to us counts as a stop."""
    return _REASONS.get(kind, "stop")


def failure(reason: Mapping[str, Any]) -> AgentspecError | None:
    """The error behind an abort that nobody asked for; None for any other end."""
    status = reason.get("status_code")
    if reason.get("type") != "abort" or status is None:
        return None
    message = str(reason.get("message") or "SGLang aborted the request")
    if _QUEUE_FULL in message.lower():
        return OverloadedError(message)
    if int(status) == 503:
        return EngineUnavailableError(message)
    return InvalidRequestError(message) if int(status) < 500 else EngineError(message)


def receipt(
    worker: Mapping[str, Any] | None,
    *,
    prompt_tokens: int,
    cached_tokens: int,
    completion_tokens: int,
    timings: Mapping[str, Any],
    warnings: tuple[str, ...] = (),
) -> Receipt:
    """A receipt from the worker's and from SGLang's own counts.

    Args:
        worker: the worker's; None when another algorithm runs there, or the request took no decode step.
        prompt_tokens: length of the prompt.
        cached_tokens: of it reused.
        completion_tokens: generated.
        timings: SGLang's `meta_info`, as far as known.
        warnings: of the adapter.
    """
    began, prefilled = timings.get("forward_entry_time"), timings.get("prefill_finished_time")
    ours = worker or {"verify_steps": timings.get("spec_verify_ct") or max(completion_tokens - 1, 0)}
    return Receipt(
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        completion_tokens=completion_tokens,
        verify_steps=ours["verify_steps"],
        drafted=ours.get("drafted", {}),
        accepted=ours.get("accepted", {}),
        prefill_seconds=max(prefilled - began, 0.0) if began and prefilled else 0.0,
        draft_seconds=ours.get("draft_seconds", 0.0),
        verify_seconds=ours.get("verify_seconds", 0.0),
        queue_seconds=timings.get("queue_time") or 0.0,
        speculation=bool(ours.get("speculation", False)),
        warnings=(*warnings, *ours.get("warnings", ())),
    )
