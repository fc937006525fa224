"""Sampling parameters in SGLang's words."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from agentspec.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentspec.engines.base import OutputFormat, SamplingParams, ToolChoice

ANY_OBJECT = '{"type": "object"}'
"""The schema that any JSON object fits."""


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


def format_params(output: OutputFormat | None) -> dict[str, str]:
    """A prescribed form in the words of SGLang's sampling parameters."""
    if output is None:
        return {}
    if output.kind == "regex":
        return {"regex": output.definition}
    return {"json_schema": output.definition or ANY_OBJECT}


def chat_format_params(output: OutputFormat | None) -> dict[str, Any]:
    """A prescribed form in the words of SGLang's chat endpoint."""
    if output is None or output.kind == "regex":
        return dict(format_params(output))
    if output.kind == "json_object":
        return {"response_format": {"type": "json_object"}}
    schema = {"name": "answer", "schema": json.loads(output.definition)}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def tool_params(tools: Sequence[Mapping[str, Any]], choice: ToolChoice) -> dict[str, Any]:
    """Tools in the words of SGLang's chat endpoint, which knows a tool that must be called, but not some that may be.

    Args:
        tools: those that may be called; no others are offered.
        choice: how they may be called.
    """
    if not tools:
        return {}
    wanted: Any = "required" if choice.required else "auto"
    if choice.required and len(choice.names) == 1:
        wanted = {"type": "function", "function": {"name": choice.names[0]}}
    return {"tools": list(tools), "tool_choice": wanted, "parallel_tool_calls": choice.parallel}
