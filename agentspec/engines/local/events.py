"""What the scheduler tells the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentspec.engines.base import Chunk
    from agentspec.engines.local.request import Generation
    from agentspec.errors import AgentspecError


@dataclass(frozen=True, slots=True)
class Progress:
    """A choice has more text, and perhaps its end."""

    generation: Generation
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class Failure:
    """A generation is over because of an error."""

    generation: Generation
    error: AgentspecError


Event = Progress | Failure
