"""One request through an engine, with the time at which everything arrived."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from agentspec.engines.base import Receipt
from agentspec.errors import AgentspecError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from agentspec.engines.base import Engine, FinishReason, GenerationRequest


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a caller saw of one request (its first choice).

    Attributes:
        text: everything that was streamed.
        token_ids: tokens generated.
        arrivals: per chunk, seconds since the request and number of tokens it brought.
        finish_reason: why it ended; None when it failed.
        receipt: the engine's own account.
        error: why it failed; empty when it did not.
    """

    text: str
    token_ids: tuple[int, ...]
    arrivals: tuple[tuple[float, int], ...]
    finish_reason: FinishReason | None
    receipt: Receipt
    error: str = ""

    @property
    def seconds(self) -> float:
        """From the request to its last chunk."""
        return self.arrivals[-1][0] if self.arrivals else 0.0

    @property
    def first_token_seconds(self) -> float:
        """From the request to its first token."""
        return next((at for at, count in self.arrivals if count), 0.0)

    @property
    def decode_seconds(self) -> float:
        """From the first token to the last chunk."""
        return self.seconds - self.first_token_seconds

    def step_gaps(self) -> NDArray[np.float64]:
        """Seconds between chunks that brought tokens: what a reader waits between bursts."""
        return np.diff([at for at, count in self.arrivals if count])

    def token_gaps(self) -> NDArray[np.float64]:
        """Seconds between tokens, bursts as they are: tokens of one step arrive together, 0 apart."""
        return np.diff([at for at, count in self.arrivals for _ in range(count)])


async def measure(
    engine: Engine, request: GenerationRequest, show: Callable[[str], None] = lambda _: None
) -> Measurement:
    """Run one request to its end.

    Args:
        engine: ready.
        request: with one choice.
        show: called with each piece of text as it arrives.
    """
    text: list[str] = []
    tokens: list[int] = []
    arrivals: list[tuple[float, int]] = []
    finish_reason: FinishReason | None = None
    receipt, error = Receipt(), ""
    start = time.perf_counter()
    try:
        async for chunk in engine.generate(request):
            arrivals.append((time.perf_counter() - start, len(chunk.token_ids)))
            text.append(chunk.text)
            tokens += chunk.token_ids
            finish_reason = chunk.finish_reason
            receipt = chunk.receipt or receipt
            show(chunk.text)
    except AgentspecError as failure:
        error = str(failure)
    return Measurement("".join(text), tuple(tokens), tuple(arrivals), finish_reason, receipt, error)
