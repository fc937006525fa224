"""Bodies of Anthropic's Messages API, and how they translate to and from chat completions."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from agentspec.api.schemas.chat import ChatCompletionRequest, Message
from agentspec.api.schemas.common import (
    AgentspecOptions,
    Prediction,
    RequestModel,
    ResponseFormat,
    StopString,
    TokenCount,
)
from agentspec.api.schemas.tools import EarlierCall, FunctionCall, FunctionDefinition, Tool, ToolCall, ToolChoiceObject
from agentspec.api.schemas.usage import ReceiptField
from agentspec.engines.base import FinishReason, Receipt
from agentspec.errors import InvalidRequestError

NONCE_PREFIX = "x-anthropic-billing-header:"
"""Begins a line that Claude Code puts before its system prompt and changes with every request; kept, it would make
every prompt differ from its first tokens on, and the prefix cache useless."""

STOP_REASONS: dict[FinishReason, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
    "abort": "end_turn",
}


class TextBlock(RequestModel):
    """Text."""

    type: Literal["text"]
    text: str


class ToolUseBlock(RequestModel):
    """A tool call of an earlier turn."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(RequestModel):
    """What a tool answered."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[Annotated[TextBlock | OtherBlock, Field(discriminator="type")]] | None = None


class ThinkingBlock(RequestModel):
    """Reasoning of an earlier turn; not shown to the model again."""

    type: Literal["thinking", "redacted_thinking"]


class OtherBlock(RequestModel):
    """Content that this server cannot serve."""

    type: Literal["image", "document", "search_result", "container_upload", "server_tool_use", "web_search_tool_result"]


ToolResultBlock.model_rebuild()

Block = Annotated[TextBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock | OtherBlock, Field(discriminator="type")]


class AnthropicMessage(RequestModel):
    """One turn."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class AnthropicTool(RequestModel):
    """A tool offered to the model; tools that Anthropic's servers run have a `type` and no schema."""

    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    type: str | None = None


class ToolChoice(RequestModel):
    """Whether tools may be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    def as_chat(self) -> Literal["none", "auto", "required"] | ToolChoiceObject:
        """The same choice in the terms of chat completions."""
        if self.type == "tool":
            return ToolChoiceObject(type="function", name=self.name)
        return "required" if self.type == "any" else self.type


class OutputConfig(RequestModel):
    """The form of the answer."""

    format: ResponseFormat | None = None


class CountTokensRequest(RequestModel):
    """A conversation whose tokens are to be counted."""

    model: str
    messages: Annotated[list[AnthropicMessage], Field(min_length=1)]
    system: str | list[TextBlock] | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: ToolChoice | None = None

    def conversation(self) -> list[Message]:
        """The turns as chat messages: system text first, tool results as turns of their own.

        Raises:
            InvalidRequestError: a block is not text, tool use or tool result.
        """
        messages = [Message(role="system", content=text)] if (text := self._system_text()) else []
        for position, message in enumerate(self.messages):
            messages += _chat_messages(message, f"messages.{position}.content")
        return messages

    def offered_tools(self) -> list[Tool] | None:
        """The tools as functions; those that Anthropic's servers would run are left out."""
        if self.tool_choice is not None and self.tool_choice.type == "none":
            return None
        return [
            Tool(
                type="function",
                function=FunctionDefinition(name=tool.name, description=tool.description, parameters=tool.input_schema),
            )
            for tool in self.tools or ()
            if tool.input_schema is not None
        ] or None

    def _system_text(self) -> str:
        blocks = [self.system] if isinstance(self.system, str) else [block.text for block in self.system or ()]
        return "\n\n".join(text for text in blocks if text and not text.startswith(NONCE_PREFIX))


class MessagesRequest(CountTokensRequest):
    """A conversation to be continued."""

    max_tokens: TokenCount
    stop_sequences: Annotated[list[StopString], Field(max_length=16)] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    metadata: dict[str, Any] | None = None
    output_config: OutputConfig | None = None
    prediction: Prediction | None = None
    repository: str | None = None
    edited_path: str | None = None
    agentspec: AgentspecOptions | None = None

    def as_chat(self) -> ChatCompletionRequest:
        """The same request in the terms of chat completions.

        Raises:
            InvalidRequestError: as `conversation` and `offered_tools`.
        """
        return ChatCompletionRequest(
            model=self.model,
            messages=self.conversation(),
            tools=[*(self.offered_tools() or ())],
            tool_choice=None if self.tool_choice is None else self.tool_choice.as_chat(),
            parallel_tool_calls=not (self.tool_choice and self.tool_choice.disable_parallel_tool_use),
            response_format=None if self.output_config is None else self.output_config.format,
            max_tokens=self.max_tokens,
            stop=self.stop_sequences,
            stream=self.stream,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            prediction=self.prediction,
            repository=self.repository,
            edited_path=self.edited_path,
            agentspec=self.agentspec,
        )


class TokenCountResponse(BaseModel):
    """Tokens of a conversation."""

    input_tokens: int


class AnthropicUsage(BaseModel):
    """Tokens of a call; `input_tokens` are those that were not in the prefix cache."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int

    @classmethod
    def of(cls, receipt: Receipt) -> AnthropicUsage:
        """The usage that `receipt` tells of."""
        return cls(
            input_tokens=receipt.prompt_tokens - receipt.cached_tokens,
            cache_creation_input_tokens=0,
            cache_read_input_tokens=receipt.cached_tokens,
            output_tokens=receipt.completion_tokens,
        )


class AnthropicAnswer(BaseModel):
    """The answer of a call that does not stream."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[dict[str, Any]]
    stop_reason: str | None
    stop_sequence: str | None
    usage: AnthropicUsage
    agentspec: ReceiptField | None = None


def _chat_messages(message: AnthropicMessage, field: str) -> list[Message]:
    if isinstance(message.content, str):
        return [Message(role=message.role, content=message.content)]
    results: list[Message] = []
    texts: list[str] = []
    calls: list[EarlierCall] = []
    for number, block in enumerate(message.content):
        match block:
            case TextBlock():
                texts.append(block.text)
            case ToolUseBlock():
                function = FunctionCall(name=block.name, arguments=json.dumps(block.input))
                calls.append(ToolCall(id=block.id, function=function))
            case ToolResultBlock():
                text = _result_text(block, f"{field}.{number}.content")
                results.append(Message(role="tool", tool_call_id=block.tool_use_id, content=text))
            case OtherBlock():
                raise _unsupported(block, f"{field}.{number}")
    if texts or calls or not results:
        results.append(Message(role=message.role, content="".join(texts), tool_calls=calls or None))
    return results


def _result_text(result: ToolResultBlock, field: str) -> str:
    if result.content is None or isinstance(result.content, str):
        return result.content or ""
    texts = []
    for number, block in enumerate(result.content):
        if isinstance(block, OtherBlock):
            raise _unsupported(block, f"{field}.{number}")
        texts.append(block.text)
    return "".join(texts)


def _unsupported(block: OtherBlock, field: str) -> InvalidRequestError:
    return InvalidRequestError(f"content of type '{block.type}' is not supported; the model reads text only", field)
