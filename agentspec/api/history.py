"""What was generated lately: counts over time for everybody, receipts for the caller they belong to. Never text."""

from __future__ import annotations

import time
from collections import Counter, deque
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentspec.engines.base import Receipt

CALLER: ContextVar[str] = ContextVar("caller", default="")
"""Who sent the request that runs in this context; set where an endpoint asks for its caller."""

SPAN_SECONDS = 10
"""Length of one span of the history."""

SPANS = 360
"""Spans kept: one hour."""

RECEIPTS = 50
"""Receipts shown to one caller."""

CALLERS = 64
"""Callers whose receipts are kept; the one that was silent for longest goes first."""


@dataclass(slots=True)
class Span:
    """What ended within one span of time.

    Attributes:
        begin: Unix time, a multiple of `SPAN_SECONDS`.
        choices: choices generated to their end.
        prompt_tokens: of their prompts.
        cached_tokens: those of them whose KV was reused.
        completion_tokens: generated.
        verify_steps: passes of the target.
        drafted: nodes verified, by draft source.
        accepted: nodes accepted, by draft source.
    """

    begin: int
    choices: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    verify_steps: int = 0
    drafted: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)

    def add(self, receipt: Receipt) -> None:
        """Count one more choice."""
        self.choices += 1
        self.prompt_tokens += receipt.prompt_tokens
        self.cached_tokens += receipt.cached_tokens
        self.completion_tokens += receipt.completion_tokens
        self.verify_steps += receipt.verify_steps
        self.drafted.update(receipt.drafted)
        self.accepted.update(receipt.accepted)


@dataclass(frozen=True, slots=True)
class PastChoice:
    """A choice that ended.

    Attributes:
        ended: Unix time.
        finish_reason: why it ended.
        receipt: what it cost.
    """

    ended: float
    finish_reason: str
    receipt: Receipt


class History:
    """The last hour, bounded in memory whatever happens.

    Args:
        clock: Unix time; tests bring their own.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._spans: deque[Span] = deque(maxlen=SPANS)
        self._choices: dict[str, deque[PastChoice]] = {}

    def add(self, finish_reason: str, receipt: Receipt) -> None:
        """Note a choice that ended, for the caller of the current context."""
        now = self._clock()
        begin = int(now // SPAN_SECONDS) * SPAN_SECONDS
        if not self._spans or self._spans[-1].begin != begin:
            self._spans.append(Span(begin))
        self._spans[-1].add(receipt)
        caller = CALLER.get()
        choices = self._choices.pop(caller, None) or deque(maxlen=RECEIPTS)
        choices.appendleft(PastChoice(now, finish_reason, receipt))
        self._choices[caller] = choices
        if len(self._choices) > CALLERS:
            del self._choices[next(iter(self._choices))]

    def spans(self) -> list[Span]:
        """Spans of the last hour in which something ended, oldest first."""
        oldest = self._clock() - SPANS * SPAN_SECONDS
        return [span for span in self._spans if span.begin >= oldest]

    def choices(self, caller: str) -> list[PastChoice]:
        """What a caller's requests came to, newest first."""
        return list(self._choices.get(caller, ()))
