"""Bodies of OpenAI's Responses API, and how they translate to chat completions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Discriminator, Field, Tag, TypeAdapter

from agentspec.api.schemas.chat import ChatCompletionRequest, Message
from agentspec.api.schemas.common import AgentspecOptions, Prediction, RequestModel, ResponseFormat, TokenCount
from agentspec.api.schemas.tools import (
    FunctionCall,
    FunctionDefinition,
    Tool,
    ToolCall,
    ToolChoiceObject,
    custom_arguments,
    custom_function,
)
from agentspec.api.schemas.usage import ReceiptField
from agentspec.errors import InvalidRequestError


class TextContent(RequestModel):
    """Text, under each of its names."""

    type: Literal["input_text", "output_text", "text", "refusal", "summary_text", "reasoning_text"]
    text: str = ""
    refusal: str = ""


class OtherContent(RequestModel):
    """Content that this server cannot serve."""

    type: Literal["input_image", "input_file", "input_audio"]


Content = str | list[Annotated[TextContent | OtherContent, Field(discriminator="type")]]


class MessageItem(RequestModel):
    """A turn; items replayed from an earlier answer may lack their id and status."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Content


class CallItem(RequestModel):
    """A call of a function (`arguments`) or a custom tool (`input`) in an earlier turn."""

    type: Literal["function_call", "custom_tool_call"]
    call_id: str
    name: str
    arguments: str = ""
    input: str = ""


class CallOutputItem(RequestModel):
    """What a tool answered."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: Content


class ReasoningItem(RequestModel):
    """Reasoning of an earlier turn; not shown to the model again."""

    type: Literal["reasoning"]


class OtherItem(RequestModel):
    """Items of tools that this server does not run."""

    type: str


_KINDS = {
    "message": "message",
    "function_call": "call",
    "custom_tool_call": "call",
    "function_call_output": "call_output",
    "custom_tool_call_output": "call_output",
    "reasoning": "reasoning",
}


def _kind(item: Any) -> str:
    """Branch of `InputItem` that an item belongs to; a turn need not say that it is a message."""
    kind = item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", "message")
    return _KINDS.get(kind, "other") if isinstance(kind, str) else "other"


InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("call")]
    | Annotated[CallOutputItem, Tag("call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[OtherItem, Tag("other")],
    Discriminator(_kind),
]
INPUT_ITEMS: TypeAdapter[list[InputItem]] = TypeAdapter(list[InputItem])


class ResponseTool(RequestModel):
    """A tool offered to the model; other types than `function` and `custom` are accepted and not offered."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class TextOptions(RequestModel):
    """The form of the answer."""

    format: ResponseFormat | None = None


class ResponsesRequest(RequestModel):
    """A conversation, or what continues an earlier one."""

    model: str | None = None
    input: str | list[InputItem] = Field(default_factory=list)
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    background: bool | None = None
    max_output_tokens: TokenCount | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoiceObject | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None
    prediction: Prediction | None = None
    repository: str | None = None
    edited_path: str | None = None
    agentspec: AgentspecOptions | None = None

    def items(self) -> list[InputItem]:
        """The input as items."""
        if isinstance(self.input, str):
            return [MessageItem(role="user", content=self.input)]
        return self.input

    def text_format(self) -> dict[str, Any]:
        """The form of the answer, as a response repeats it."""
        if self.text is None or self.text.format is None:
            return {"type": "text"}
        return self.text.format.model_dump(exclude_none=True, by_alias=True)

    def shown_tool_choice(self) -> str | dict[str, Any]:
        """The choice of tools, as a response repeats it."""
        if isinstance(self.tool_choice, ToolChoiceObject):
            return self.tool_choice.model_dump(exclude_unset=True)
        return self.tool_choice or "auto"

    def custom_tools(self) -> frozenset[str]:
        """Names of the tools that take free text."""
        return frozenset(tool.name for tool in self.tools or () if tool.type == "custom" and tool.name)

    def as_chat(self, earlier: Sequence[InputItem]) -> ChatCompletionRequest:
        """The same request in the terms of chat completions.

        Args:
            earlier: items of the responses that this one continues.

        Raises:
            InvalidRequestError: there is nothing to continue, or an item cannot be shown to the model.
        """
        messages = _messages([*earlier, *self.items()])
        if self.instructions:
            messages.insert(0, Message(role="system", content=self.instructions))
        if not messages:
            raise InvalidRequestError("input is empty; give a text or at least one item", "input")
        return ChatCompletionRequest(
            model=self.model,
            messages=messages,
            tools=[tool for given in self.tools or () if (tool := _offered(given)) is not None] or None,
            tool_choice=self.tool_choice,
            parallel_tool_calls=self.parallel_tool_calls,
            response_format=self.text.format if self.text is not None else None,
            max_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            prediction=self.prediction,
            repository=self.repository,
            edited_path=self.edited_path,
            agentspec=self.agentspec,
        )


class InputTokensDetails(BaseModel):
    """Of the input tokens, those whose KV was reused."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(BaseModel):
    """Of the output tokens, those of reasoning; they are not counted apart here."""

    reasoning_tokens: int = 0


class ResponseUsage(BaseModel):
    """Tokens of a response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseFailure(BaseModel):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(BaseModel):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens", "content_filter"]


class ResponseBody(BaseModel):
    """A response."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]
    background: bool = False
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    model: str
    output: list[dict[str, Any]] = Field(default_factory=list)
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    store: bool = True
    temperature: float | None = None
    text: dict[str, Any] = Field(default_factory=lambda: {"format": {"type": "text"}})
    tool_choice: str | dict[str, Any] = "auto"
    tools: list[dict[str, Any]] = Field(default_factory=list)
    top_p: float | None = None
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
    user: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    agentspec: ReceiptField | None = None


class ResponseDeleted(BaseModel):
    """A response that is not kept any more."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


def _messages(items: Iterable[InputItem]) -> list[Message]:
    """Items as chat messages; calls join the assistant's turn that they belong to."""
    messages: list[Message] = []
    for number, item in enumerate(items):
        match item:
            case MessageItem():
                messages.append(Message(role=item.role, content=_text(item.content, f"input.{number}.content")))
            case CallItem():
                if not messages or messages[-1].role != "assistant":
                    messages.append(Message(role="assistant", content=""))
                messages[-1].tool_calls = [*(messages[-1].tool_calls or ()), _call(item)]
            case CallOutputItem():
                text = _text(item.output, f"input.{number}.output")
                messages.append(Message(role="tool", tool_call_id=item.call_id, content=text))
            case OtherItem():
                raise InvalidRequestError(f"items of type '{item.type}' are not supported", f"input.{number}.type")
    return messages


def _call(item: CallItem) -> ToolCall:
    arguments = item.arguments
    if item.type == "custom_tool_call":
        arguments = custom_arguments(item.input)
    return ToolCall(id=item.call_id, function=FunctionCall(name=item.name, arguments=arguments))


def _text(content: Content, field: str) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for number, part in enumerate(content):
        if isinstance(part, OtherContent):
            raise InvalidRequestError(
                f"content of type '{part.type}' is not supported; the model reads text only", f"{field}.{number}.type"
            )
        texts.append(part.text or part.refusal)
    return "".join(texts)


def _offered(tool: ResponseTool) -> Tool | None:
    """The tool as a function, or None where it is one that OpenAI's servers would run."""
    if tool.name is None or tool.type not in ("function", "custom"):
        return None
    if tool.type == "custom":
        return custom_function(tool.name, tool.description)
    function = FunctionDefinition(
        name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
    )
    return Tool(type="function", function=function)
