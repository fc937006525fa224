"""Answers in the shape of OpenAI's chat completions, whole or streamed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from agentspec.api.custom_calls import CustomCalls, shown_call
from agentspec.api.event_stream import until_disconnect
from agentspec.api.generation import collect, generate
from agentspec.api.logprobs import chat_logprobs
from agentspec.api.requests import engine_requests, new_id
from agentspec.api.schemas.chat import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    ChatLogprobs,
)
from agentspec.api.schemas.usage import ReceiptField, Usage
from agentspec.api.streaming import StreamEncoder, stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.requests import Request

    from agentspec.api.generation import Choice
    from agentspec.api.schemas.common import GenerationFields
    from agentspec.api.services import Services
    from agentspec.engines.base import Chunk, Prompt, SamplingParams


async def chat_answer(
    services: Services,
    caller: str,
    fields: GenerationFields,
    request: Request,
    *,
    prompt: Prompt,
    sampling: SamplingParams,
    custom_tools: frozenset[str] = frozenset(),
) -> Response:
    """Run a request and answer it in the shape of chat completions, streamed where `fields` asks for it.

    Args:
        services: of the application.
        caller: whose request it is.
        fields: what all generating endpoints understand.
        request: the HTTP request.
        prompt: what the model continues.
        sampling: how it draws tokens.
        custom_tools: names of the offered tools that take free text.

    Raises:
        AgentspecError: the request cannot be served; of a stream, only what is known before it starts.
    """
    model = services.require_model(fields.model)
    call_id = new_id("chatcmpl-")
    requests = engine_requests(
        services, caller=caller, fields=fields, call_id=call_id, prompts=[prompt], sampling=sampling
    )
    chunks = generate(services.engine, services.metrics, requests)
    if fields.stream:
        return stream(services, _ChatStream(fields, call_id, model, custom_tools).events(chunks))
    choices = await until_disconnect(request.receive, collect(chunks, fields.choices), services.metrics.client_left)
    answer = ChatCompletion(
        id=call_id,
        object="chat.completion",
        created=int(time.time()),
        model=model,
        choices=[
            _choice(index, choice, custom_tools, with_logprobs=sampling.logprobs is not None)
            for index, choice in enumerate(choices)
        ],
        usage=Usage.of([choice.receipt for choice in choices], fields.choices),
    )
    if fields.wants_receipt:
        answer.agentspec = ReceiptField.of([choice.receipt for choice in choices])
    return Response(answer.model_dump_json(exclude_unset=True), media_type="application/json")


def _choice(index: int, choice: Choice, custom_tools: frozenset[str], *, with_logprobs: bool) -> ChatChoice:
    message = AssistantMessage(role="assistant", content=choice.text, refusal=None)
    if choice.reasoning:
        message.reasoning_content = choice.reasoning
    if choice.tool_calls:
        message.tool_calls = [shown_call(call, custom_tools) for call in choice.tool_calls]
        message.content = choice.text or None
    logprobs = chat_logprobs(choice.logprobs) if with_logprobs else None
    return ChatChoice(index=index, message=message, logprobs=logprobs, finish_reason=choice.finish_reason)


class _ChatStream(StreamEncoder):
    """Encodes a streamed conversation: role, deltas, one finish chunk per choice."""

    def __init__(self, fields: GenerationFields, call_id: str, model: str, custom_tools: frozenset[str]) -> None:
        super().__init__(fields, choices=fields.choices)
        self._calls = CustomCalls(custom_tools)
        self._head: dict[str, Any] = {
            "id": call_id,
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": model,
        }
        self._begun: set[int] = set()

    def bodies(self, chunk: Chunk) -> Iterator[ChatCompletionChunk]:
        """Role chunk at the first sign of a choice, then what `chunk` added, then the finish."""
        if chunk.index not in self._begun:
            self._begun.add(chunk.index)
            yield self._body(chunk.index, ChatDelta(role="assistant", content=""))
        given: dict[str, Any] = {
            "content": chunk.text,
            "reasoning_content": chunk.reasoning,
            "tool_calls": [_without_nulls(delta) for delta in self._calls.shown(chunk)],
        }
        delta = ChatDelta(**{name: value for name, value in given.items() if value})
        logprobs = chat_logprobs(chunk.logprobs) if chunk.logprobs else None
        if delta.model_fields_set or logprobs:
            yield self._body(chunk.index, delta, logprobs)
        if chunk.finish_reason is not None:
            yield self._body(chunk.index, ChatDelta(), finish_reason=chunk.finish_reason)

    def usage_body(self, usage: Usage) -> ChatCompletionChunk:
        """The chunk without choices that ends a stream whose client asked for usage."""
        return ChatCompletionChunk(**self._head, choices=[], usage=usage)

    def _body(
        self, index: int, delta: ChatDelta, logprobs: ChatLogprobs | None = None, finish_reason: str | None = None
    ) -> ChatCompletionChunk:
        choice = ChatChunkChoice(index=index, delta=delta, logprobs=logprobs, finish_reason=finish_reason)
        return ChatCompletionChunk(**self._head, choices=[choice])


def _without_nulls(delta: Mapping[str, Any]) -> dict[str, Any]:
    """A tool-call delta with the fields it sets; clients that merge deltas stumble over nulls."""
    return {
        name: _without_nulls(value) if isinstance(value, Mapping) else value
        for name, value in delta.items()
        if value is not None
    }
