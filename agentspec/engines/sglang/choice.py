"""One choice of a request, as it is sent to SGLang."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentspec.engines.base import OutputFormat, SamplingParams


@dataclass(frozen=True, slots=True)
class Choice:
    """What both of SGLang's endpoints need to know.

    Attributes:
        name: unique; names the choice for `/abort_request`.
        index: of the choice in its request.
        sampling: of the request.
        params: what `sampling_params` made of it.
        seed: of this choice.
        custom_params: for the worker.
        warnings: for the receipt.
        output_format: form that the text must have.
        tool_params: what `tool_params` made of the tools of a chat.
    """

    name: str
    index: int
    sampling: SamplingParams
    params: Mapping[str, Any]
    seed: int | None = None
    custom_params: Mapping[str, Any] | None = None
    warnings: tuple[str, ...] = ()
    output_format: OutputFormat | None = None
    tool_params: Mapping[str, Any] = field(default_factory=dict)
