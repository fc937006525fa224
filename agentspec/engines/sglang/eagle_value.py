"""When EAGLE-3's draft is worth its time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_MEMORY = 0.95
"""Share of an average that the next observation keeps."""
_PROBE_EVERY = 16
"""Rounds after which EAGLE-3 drafts anyway, so that its worth is not judged by old rounds alone."""


class EagleValue:
    """Weighs what EAGLE-3 adds in tokens against what it costs in time, both learnt from the rounds so far.

    EAGLE-3 helps where the model-free tree fails, so its gain in a round is the probability of that, times the nodes
    that it gets accepted; a round in which every request is sure of its next token gains nothing.
    """

    def __init__(self) -> None:
        self._accepted = 1.0
        self._draft_seconds: float | None = None
        self._round_seconds: float | None = None
        self._round_tokens = 2.0
        self._since_draft = 0

    @property
    def hit_rate(self) -> float:
        """Estimated probability of a node of an EAGLE-3 chain, given its parent."""
        return self._accepted / (1.0 + self._accepted)

    def worth(self, unsure: Sequence[float], batch: int) -> bool:
        """Whether to draft in this round.

        Args:
            unsure: for every request that may speculate, the probability that its model-free tree fails at once.
            batch: requests in the round.
        """
        self._since_draft += 1
        if self._draft_seconds is None or self._round_seconds is None or self._since_draft >= _PROBE_EVERY:
            return True
        gain = sum(unsure) * self._accepted / batch
        price = self._draft_seconds / self._round_seconds * self._round_tokens
        return gain > price

    def drafted(self, seconds: float) -> None:
        """Learn what one draft took."""
        self._since_draft = 0
        self._draft_seconds = _blend(self._draft_seconds, seconds)

    def verified(self, seconds: float, tokens: float, accepted: Sequence[int]) -> None:
        """Learn from a round.

        Args:
            seconds: of the whole round.
            tokens: generated per request.
            accepted: EAGLE-3 nodes accepted, by request; empty when it did not draft.
        """
        self._round_seconds = _blend(self._round_seconds, seconds)
        self._round_tokens = _blend(self._round_tokens, tokens)
        if accepted:
            self._accepted = _blend(self._accepted, sum(accepted) / len(accepted))


def _blend(average: float | None, value: float) -> float:
    return value if average is None else _MEMORY * average + (1 - _MEMORY) * value
