"""Tools: how they are offered, called and chosen."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from agentspec.api.schemas.common import RequestModel
from agentspec.engines.base import ToolChoice
from agentspec.errors import InvalidRequestError


class FunctionCall(RequestModel):
    """The function that an earlier turn called, with its arguments as JSON text."""

    name: str
    arguments: str = ""


class ToolCall(RequestModel):
    """A tool call of an earlier turn."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class FunctionDefinition(RequestModel):
    """A function that the model may call."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(RequestModel):
    """A tool offered to the model."""

    type: Literal["function"]
    function: FunctionDefinition


class OtherTool(RequestModel):
    """A tool that OpenAI's servers would run; accepted and not offered."""

    type: str


def _kind(tool: Any) -> str:
    """Branch of `OfferedTool` that a tool belongs to."""
    kind = tool.get("type") if isinstance(tool, dict) else getattr(tool, "type", None)
    return "function" if kind in ("function", None) else "other"


OfferedTool = Annotated[Annotated[Tool, Tag("function")] | Annotated[OtherTool, Tag("other")], Discriminator(_kind)]


class FunctionName(RequestModel):
    """A function by its name."""

    name: str


class ToolReference(RequestModel):
    """A tool by its name, which stands in `function`, or beside the type as in the Responses API."""

    type: str
    name: str | None = None
    function: FunctionName | None = None

    def tool_name(self) -> str:
        """The name.

        Raises:
            InvalidRequestError: there is none.
        """
        name = self.name if self.function is None else self.function.name
        if name is None:
            raise InvalidRequestError(f"tool_choice of type '{self.type}' names no function", "tool_choice")
        return name


class AllowedTools(RequestModel):
    """Some of the offered tools."""

    mode: Literal["auto", "required"] = "auto"
    tools: list[ToolReference]


class ToolChoiceObject(ToolReference):
    """A tool that must be called, or the ones that may be."""

    allowed_tools: AllowedTools | None = None
    mode: Literal["auto", "required"] = "auto"
    tools: list[ToolReference] | None = None

    def policy(self, *, parallel: bool) -> ToolChoice:
        """The choice for the engine.

        Raises:
            InvalidRequestError: it names no tool.
        """
        if self.type != "allowed_tools":
            return ToolChoice(required=True, names=(self.tool_name(),), parallel=False)
        allowed = self.allowed_tools or AllowedTools(mode=self.mode, tools=self.tools or [])
        names = tuple(tool.tool_name() for tool in allowed.tools if tool.type in ("function", "custom"))
        if not names:
            raise InvalidRequestError("tool_choice allows no function that is offered here", "tool_choice")
        return ToolChoice(required=allowed.mode == "required", names=names, parallel=parallel)
