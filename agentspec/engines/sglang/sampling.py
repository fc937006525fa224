"""Sampling parameters in SGLang's words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentspec.errors import InvalidRequestError

if TYPE_CHECKING:
    from agentspec.engines.base import SamplingParams


def sampling_params(sampling: SamplingParams, deterministic: bool) -> dict[str, Any]:
    """What SGLang's endpoints agree on; length, seed and log-probabilities are called differently in each.

    Args:
        sampling: of the request.
        deterministic: whether the server samples with seeds.

    Raises:
        InvalidRequestError: `min_p` under seeded sampling, which SGLang cannot combine.
    """
    if deterministic and sampling.min_p > 0:
        raise InvalidRequestError("min_p cannot be combined with seeded sampling (sglang.deterministic)", "min_p")
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "logit_bias": {str(token): bias for token, bias in sampling.logit_bias.items()} or None,
        "stop": list(sampling.stop) or None,
        "stop_token_ids": list(sampling.stop_token_ids) or None,
        "ignore_eos": sampling.ignore_eos,
    }
