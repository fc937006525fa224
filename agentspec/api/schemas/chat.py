"""Bodies of `/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from agentspec.api.schemas.common import GenerationFields, RequestModel, TextPart, TokenCount
from agentspec.api.schemas.tools import (
    CustomTool,
    EarlierCall,
    OfferedTool,
    Tool,
    ToolChoiceObject,
    custom_function,
)
from agentspec.api.schemas.usage import ReceiptField, Usage
from agentspec.api.stable_prefix import with_stable_prefix
from agentspec.engines.base import ChatPrompt, ToolChoice
from agentspec.errors import InvalidRequestError

Role = Literal["system", "developer", "user", "assistant", "tool"]


TEMPLATE_ARGUMENTS = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "messages",
        "max_length",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""What steers the rendering rather than the template; a template of the client's own could run without end."""


class OtherPart(RequestModel):
    """A content part that this server cannot serve: images, audio, files."""

    type: Literal["image_url", "input_audio", "file", "refusal"]


class Message(RequestModel):
    """One turn of the conversation."""

    model_config = ConfigDict(extra="allow")

    role: Role
    content: str | list[TextPart | OtherPart] | None = None
    name: str | None = None
    tool_calls: list[EarlierCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    def rendered(self, position: int) -> dict[str, Any]:
        """The message as chat templates expect it: plain text, and no role that they do not know.

        Raises:
            InvalidRequestError: a part is not text.
        """
        message: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": self._text(position),
        }
        if self.name is not None:
            message["name"] = self.name
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        if self.reasoning_content:
            message["reasoning_content"] = self.reasoning_content
        if self.tool_calls:
            message["tool_calls"] = [call.as_function().model_dump(exclude_none=True) for call in self.tool_calls]
        return message

    def _text(self, position: int) -> str:
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        texts = []
        for number, part in enumerate(self.content):
            if not isinstance(part, TextPart):
                raise InvalidRequestError(
                    f"content of type '{part.type}' is not supported; the model reads text only",
                    f"messages.{position}.content.{number}.type",
                )
            texts.append(part.text)
        return "".join(texts)


class ChatCompletionRequest(GenerationFields):
    """A conversation to be continued."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: TokenCount | None = None
    max_completion_tokens: TokenCount | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: list[OfferedTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoiceObject | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(default=None, description="variables of the chat template")

    def prompt(self, *, stable_prefix: bool) -> ChatPrompt:
        """The conversation for the engine.

        Args:
            stable_prefix: whether what changes with every request is moved behind what stays.

        Raises:
            InvalidRequestError: it asks for something that cannot be done.
        """
        if misused := sorted(TEMPLATE_ARGUMENTS.intersection(self.chat_template_kwargs or {})):
            raise InvalidRequestError(
                f"'{misused[0]}' is no variable of a chat template", f"chat_template_kwargs.{misused[0]}"
            )
        tools = () if self.tool_choice == "none" else self.tools or ()
        offered = [tool for given in tools if (tool := _offered(given)) is not None]
        return chat_prompt(self.messages, offered, self.chat_template_kwargs, stable_prefix=stable_prefix)

    def custom_tools(self) -> frozenset[str]:
        """Names of the tools that take free text."""
        return frozenset(tool.custom.name for tool in self.tools or () if isinstance(tool, CustomTool))

    @property
    def tool_policy(self) -> ToolChoice:
        """How the offered tools may be called.

        Raises:
            InvalidRequestError: the choice is not complete.
        """
        parallel = self.parallel_tool_calls is not False
        if isinstance(self.tool_choice, ToolChoiceObject):
            return self.tool_choice.policy(parallel=parallel)
        return ToolChoice(required=self.tool_choice == "required", parallel=parallel)

    @property
    def limit(self) -> int | None:
        """Most tokens to generate; the newer name wins."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def alternatives(self) -> int | None:
        """Alternatives to report with each token; None: no log-probabilities at all.

        Raises:
            InvalidRequestError: alternatives are asked for without log-probabilities.
        """
        if not self.logprobs:
            if self.top_logprobs:
                raise InvalidRequestError("top_logprobs needs logprobs: true", "top_logprobs")
            return None
        return self.top_logprobs or 0


def _offered(tool: OfferedTool) -> Tool | None:
    """The tool as a function, or None where it is one that OpenAI's servers would run."""
    if isinstance(tool, CustomTool):
        return custom_function(tool.custom.name, tool.custom.description)
    return tool if isinstance(tool, Tool) else None


def chat_prompt(
    messages: Sequence[Message],
    tools: Sequence[Tool] | None,
    template_kwargs: Mapping[str, Any] | None = None,
    *,
    stable_prefix: bool,
) -> ChatPrompt:
    """A conversation as the engine takes it; system messages at its begin become one, as many templates ask for.

    Args:
        messages: of the conversation.
        tools: offered to the model.
        template_kwargs: variables of the chat template.
        stable_prefix: whether what changes with every request is moved behind what stays.

    Raises:
        InvalidRequestError: a message holds something other than text.
    """
    rendered = [message.rendered(position) for position, message in enumerate(messages)]
    leading = list(takewhile(lambda message: message["role"] == "system", rendered))
    if len(leading) > 1:
        text = "\n\n".join(message["content"] for message in leading)
        rendered[: len(leading)] = [{"role": "system", "content": text}]
    return ChatPrompt(
        messages=with_stable_prefix(rendered) if stable_prefix else rendered,
        tools=[tool.model_dump(exclude_none=True) for tool in tools] if tools else None,
        template_kwargs=template_kwargs or {},
    )


class TopLogprob(BaseModel):
    """One alternative at a position."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatLogprob(TopLogprob):
    """The token at a position, with alternatives."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """Log-probabilities of a choice's tokens."""

    content: list[ChatLogprob]
    refusal: None = None


class AssistantMessage(BaseModel):
    """The answer."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class ChatChoice(BaseModel):
    """One answer of several."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: str


class ChatCompletion(BaseModel):
    """The whole answer of a call that does not stream."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str | None = None
    agentspec: ReceiptField | None = None


class ChatDelta(BaseModel):
    """What a chunk adds to an answer."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class ChatChunkChoice(BaseModel):
    """The choice that a chunk belongs to."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None


class ChatCompletionChunk(BaseModel):
    """One event of a stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    agentspec: ReceiptField | None = None
