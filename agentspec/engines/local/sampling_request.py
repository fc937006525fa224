"""From the sampling parameters of a request to the sampler of each of its choices."""

from __future__ import annotations

import math
import secrets
from typing import TYPE_CHECKING

from agentspec.errors import InvalidRequestError
from agentspec.kernels.processors import LogitBias, OccurrencePenalty, RepetitionPenalty
from agentspec.kernels.sampling import Sampler, Truncation

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from agentspec.engines.base import SamplingParams
    from agentspec.kernels.processors import LogitsProcessor


def check_sampling(sampling: SamplingParams, vocab_size: int) -> None:
    """Check ranges.

    Raises:
        InvalidRequestError: a value lies outside what it can mean; names the parameter.
    """
    ranges = {
        "temperature": (sampling.temperature, 0.0, math.inf),
        "top_p": (sampling.top_p, 0.0, 1.0),
        "top_k": (sampling.top_k, 0, math.inf),
        "min_p": (sampling.min_p, 0.0, 1.0),
        "presence_penalty": (sampling.presence_penalty, -math.inf, math.inf),
        "frequency_penalty": (sampling.frequency_penalty, -math.inf, math.inf),
        "repetition_penalty": (sampling.repetition_penalty, 0.0, math.inf),
        "max_tokens": (1 if sampling.max_tokens is None else sampling.max_tokens, 1, math.inf),
        "logprobs": (sampling.logprobs or 0, 0, vocab_size),
    }
    for name, (value, low, high) in ranges.items():
        if not (math.isfinite(value) and low <= value <= high):
            raise InvalidRequestError(f"{name} is {value}; it must lie between {low} and {high}", name)
    for name in ("top_p", "repetition_penalty"):
        if getattr(sampling, name) == 0:
            raise InvalidRequestError(f"{name} is 0; it must be greater", name)
    for token, bias in sampling.logit_bias.items():
        if not 0 <= token < vocab_size:
            raise InvalidRequestError(f"logit_bias names token {token}; the vocabulary has {vocab_size}", "logit_bias")
        if math.isnan(bias):
            raise InvalidRequestError(f"logit_bias of token {token} is not a number", "logit_bias")


def make_samplers(
    sampling: SamplingParams,
    prompt: NDArray[np.int32],
    vocab_size: int,
    processors: Sequence[Sequence[LogitsProcessor]],
) -> list[Sampler]:
    """One sampler per choice; choice i of a seeded request uses seed + i.

    Args:
        sampling: checked parameters.
        prompt: `int32[P]`.
        vocab_size: of the target.
        processors: further processors of each choice, applied last; its length is the number of choices.
    """
    seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
    truncation = Truncation(sampling.top_k, sampling.top_p, sampling.min_p)
    return [
        Sampler(
            seed + index,
            sampling.temperature,
            truncation,
            [*_processors(sampling, prompt, vocab_size), *further],
            sampling.logprobs,
        )
        for index, further in enumerate(processors)
    ]


def _processors(sampling: SamplingParams, prompt: NDArray[np.int32], vocab_size: int) -> list[LogitsProcessor]:
    processors: list[LogitsProcessor] = []
    if sampling.logit_bias:
        processors.append(LogitBias(sampling.logit_bias))
    if sampling.repetition_penalty != 1:
        processors.append(RepetitionPenalty(sampling.repetition_penalty, prompt, vocab_size))
    if sampling.frequency_penalty or sampling.presence_penalty:
        processors.append(OccurrencePenalty(sampling.frequency_penalty, sampling.presence_penalty, vocab_size))
    return processors
