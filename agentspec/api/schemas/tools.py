"""Tools: how they are offered, called and chosen."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag
from pydantic_core import to_json

from agentspec.api.schemas.common import RequestModel
from agentspec.engines.base import ToolChoice
from agentspec.errors import InvalidRequestError

CUSTOM_TOOL_INPUT = "input"
"""The one argument under which a model writes the free text that a custom tool takes."""


class FunctionCall(RequestModel):
    """The function that an earlier turn called, with its arguments as JSON text."""

    name: str
    arguments: str = ""


class ToolCall(RequestModel):
    """A tool call of an earlier turn."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall

    def as_function(self) -> ToolCall:
        """The call as chat templates know calls."""
        return self


class CustomCall(RequestModel):
    """The custom tool that an earlier turn called, with the text that it was given."""

    name: str
    input: str = ""


class CustomToolCall(RequestModel):
    """A call of a custom tool in an earlier turn."""

    id: str | None = None
    type: Literal["custom"]
    custom: CustomCall

    def as_function(self) -> ToolCall:
        """The call as chat templates know calls."""
        arguments = custom_arguments(self.custom.input)
        return ToolCall(id=self.id, function=FunctionCall(name=self.custom.name, arguments=arguments))


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


class CustomDefinition(RequestModel):
    """A tool that takes free text. A grammar that its `format` names is not enforced."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None


class CustomTool(RequestModel):
    """A custom tool offered to the model."""

    type: Literal["custom"]
    custom: CustomDefinition


class OtherTool(RequestModel):
    """A tool that OpenAI's servers would run; accepted and not offered."""

    type: str


def custom_function(name: str, description: str | None) -> Tool:
    """A custom tool as the function that the model is offered: its one argument is the text."""
    parameters = {
        "type": "object",
        "properties": {CUSTOM_TOOL_INPUT: {"type": "string"}},
        "required": [CUSTOM_TOOL_INPUT],
    }
    return Tool(type="function", function=FunctionDefinition(name=name, description=description, parameters=parameters))


def custom_arguments(text: str) -> str:
    """A custom tool's input as the JSON arguments under which the model knows it."""
    return to_json({CUSTOM_TOOL_INPUT: text}).decode()


def custom_input(arguments: str) -> str:
    """A custom tool's input in the arguments of a call; what the model wrote as it is, where it broke the form."""
    try:
        parsed = json.loads(arguments)
    except ValueError:
        return arguments
    text = parsed.get(CUSTOM_TOOL_INPUT) if isinstance(parsed, dict) else None
    return text if isinstance(text, str) else arguments


def _kind(tool: Any) -> str:
    """Branch of `OfferedTool` or `EarlierCall` that a tool or call belongs to."""
    kind = tool.get("type") if isinstance(tool, dict) else getattr(tool, "type", None)
    if kind is None:
        return "function"
    return kind if kind in ("function", "custom") else "other"


OfferedTool = Annotated[
    Annotated[Tool, Tag("function")] | Annotated[CustomTool, Tag("custom")] | Annotated[OtherTool, Tag("other")],
    Discriminator(_kind),
]
EarlierCall = Annotated[
    Annotated[ToolCall, Tag("function")] | Annotated[CustomToolCall, Tag("custom")], Discriminator(_kind)
]


class FunctionName(RequestModel):
    """A function by its name."""

    name: str


class ToolReference(RequestModel):
    """A tool by its name, which stands in `function` or `custom`, or beside the type as in the Responses API."""

    type: str
    name: str | None = None
    function: FunctionName | None = None
    custom: FunctionName | None = None

    def tool_name(self) -> str:
        """The name.

        Raises:
            InvalidRequestError: there is none.
        """
        named = self.function or self.custom
        name = self.name if named is None else named.name
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
