"""What a verify step costs, learnt from the steps that were run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FORGETTING = 0.99
_OUTLIER = 4.0
"""Steps that take this many times what is expected say more of the machine than of their width."""
_WARM_UP_STEPS = 8
"""First steps, which compile and allocate, are not learnt from."""


class VerifyCost:
    """Seconds of a verify step as a straight line over the tokens in it, fitted with forgetting.

    A line is what decoding shows on CPUs and GPUs alike: a fixed price for reading weights and caches, and a little
    for every token.

    Args:
        per_token: initial price of one token as a share of the fixed price; only the ratio matters until something
            was measured.
    """

    def __init__(self, per_token: float = 0.02) -> None:
        self._line = np.array([1.0, per_token])
        self._precision = np.diag([1e-3, 1e-1])
        self._moment = self._precision @ self._line
        self._steps = 0

    def observe(self, tokens: int, seconds: float) -> None:
        """Learn from one step over `tokens` tokens of all requests together."""
        self._steps += 1
        if self._steps <= _WARM_UP_STEPS:
            return
        if self._steps == _WARM_UP_STEPS + 1:  # the first measurement sets the unit
            scale = seconds / self.seconds(tokens)
            self._line, self._moment = self._line * scale, self._moment * scale
        if seconds > _OUTLIER * self.seconds(tokens):
            return
        row = np.array([1.0, tokens])
        self._precision = _FORGETTING * self._precision + np.outer(row, row)
        self._moment = _FORGETTING * self._moment + row * seconds
        fixed, slope = np.linalg.solve(self._precision, self._moment)
        if fixed > 0 and slope >= 0:
            self._line = np.array([fixed, slope])

    def seconds(self, tokens: int) -> float:
        """Expected seconds of a step over `tokens` tokens."""
        return float(self._line @ (1.0, tokens))

    def curve(self, widths: NDArray[np.int64], batch: int) -> NDArray[np.float32]:
        """Budget curve for a batch.

        Args:
            widths: `int64[K]`, tokens per request that a tree of n nodes takes, padding included.
            batch: requests in the step.

        Returns:
            `float32[K]`: seconds when every request's tree has n nodes.
        """
        seconds: NDArray[np.float64] = self._line[0] + self._line[1] * batch * widths
        return seconds.astype(np.float32)
