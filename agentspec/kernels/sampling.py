"""How the target draws one token from its logits.

The draw is `argmax(logits / T + Gumbel(seed, position))` over the tokens that truncation keeps; T = 0 is greedy. By the
Gumbel-max trick that is an exact sample of the truncated softmax.

Truncation keeps every token at or above a threshold, so that the result does not depend on how a sort breaks ties:
min-p, then top-k, then top-p over what the two left (the order and the renormalisation of vLLM).

Reported log-probabilities are those of the model itself, before bias, penalties, temperature and truncation, as OpenAI
documents none of these to change them and as vLLM's default (`raw_logprobs`) has it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from agentspec.errors import EngineError
from agentspec.kernels.noise import GUMBEL_SPAN, gumbel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentspec.kernels.processors import LogitsProcessor

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: dividing by them would overflow float32."""

_FIRST_NUCLEUS = 256
"""Tokens looked at first when the nucleus is sought; most nuclei of a language model are smaller."""


@dataclass(frozen=True, slots=True)
class Truncation:
    """Which part of the distribution may be drawn.

    Attributes:
        top_k: number of most likely tokens kept, ties included; 0 keeps all.
        top_p: the most likely tokens that together reach this mass are kept, ties included.
        min_p: tokens below this share of the most likely one's probability are dropped.
    """

    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def support(self, logits: torch.Tensor) -> torch.Tensor | None:
        """Tokens that may be drawn.

        Args:
            logits: `float32[V]`, already divided by the temperature.

        Returns:
            `int64[S]`, ascending; None when all are kept.
        """
        threshold = -math.inf
        if self.min_p > 0:
            threshold = float(logits.max()) + math.log(self.min_p)
        if 0 < self.top_k < len(logits):
            threshold = max(threshold, float(logits.topk(self.top_k).values[-1]))
        if self.top_p < 1:
            kept = logits if threshold == -math.inf else logits[logits >= threshold]
            threshold = max(threshold, _nucleus_threshold(kept, self.top_p))
        if threshold == -math.inf:
            return None
        return torch.nonzero(logits >= threshold)[:, 0]


def _nucleus_threshold(logits: torch.Tensor, mass: float) -> float:
    """Logit of the least likely token that is needed to reach `mass`."""
    total = torch.logsumexp(logits, 0)
    count = min(_FIRST_NUCLEUS, len(logits))
    while True:
        best = logits.topk(count).values
        cumulated = (best - total).double().exp().cumsum(0)
        reached = int(torch.searchsorted(cumulated, mass))
        if reached < count or count == len(logits):
            return float(best[min(reached, count - 1)])
        count = min(8 * count, len(logits))


@dataclass(frozen=True, slots=True)
class Draw:
    """One drawn token.

    Attributes:
        token: its id.
        logprob: its log-probability under the model's own distribution; None unless asked for.
        top: the most likely tokens there, (token, log-probability), best first.
    """

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """Draws the tokens of one sequence, in order.

    Args:
        seed: of the position-keyed noise.
        temperature: below `GREEDY_BELOW` the most likely token is taken, whatever the truncation.
        truncation: which tokens may be drawn.
        processors: applied to the logits in this order before temperature.
        logprobs: None for none, else how many alternatives to report with each token.
    """

    def __init__(
        self,
        seed: int = 0,
        temperature: float = 1.0,
        truncation: Truncation | None = None,
        processors: Sequence[LogitsProcessor] = (),
        logprobs: int | None = None,
    ) -> None:
        self._seed = seed
        self._temperature = temperature
        self._truncation = truncation or Truncation()
        self._processors = tuple(processors)
        self._logprobs = logprobs

    @property
    def follows_path(self) -> bool:
        """False when one of the processors needs plain decoding."""
        return all(processor.follows_path for processor in self._processors)

    def draw(self, logits: torch.Tensor, position: int) -> Draw:
        """Draw the next token and advance the processors by it.

        Args:
            logits: `float32[V]` on the CPU, as the model gave them; not changed.
            position: number of tokens before the drawn one, the prompt's included.

        Raises:
            EngineError: no token can be drawn: the model gave NaN, or processors excluded everything.
        """
        processed = logits
        if self._processors:
            processed = logits.clone()
            for processor in self._processors:
                processor.apply(processed)
        # torch's own argmax takes ten times as long, and a verify step draws several tokens.
        values = processed.numpy()
        best = int(values.argmax())
        if not math.isfinite(values[best]):
            raise EngineError(
                f"no token can be drawn at position {position}: the highest logit is {float(values[best])}; "
                "either the model's output is broken or every token has been excluded"
            )
        token = best if self._temperature < GREEDY_BELOW else self._sample(processed, position)
        for processor in self._processors:
            processor.advance(token)
        if self._logprobs is None:
            return Draw(token)
        return _with_logprobs(token, logits, self._logprobs)

    def _sample(self, logits: torch.Tensor, position: int) -> int:
        scaled = logits / self._temperature
        tokens = self._truncation.support(scaled)
        if tokens is None and self._temperature < 1:
            # A low temperature leaves few tokens that any noise could lift above the most likely one.
            tokens = torch.nonzero(scaled >= scaled.max() - GUMBEL_SPAN)[:, 0]
        if tokens is None:
            tokens = torch.arange(len(scaled))
        else:
            scaled = scaled[tokens]
        winner = gumbel(self._seed, position, tokens).add_(scaled).argmax()
        return int(tokens[winner])


def _with_logprobs(token: int, logits: torch.Tensor, count: int) -> Draw:
    logprobs = torch.log_softmax(logits, 0)
    best = logprobs.topk(min(count, len(logprobs)))
    top = tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    return Draw(token, float(logprobs[token]), top)
