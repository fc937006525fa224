"""The engine contract: what the API layer asks of an engine and what it gets back."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from agentspec.errors import EngineUnavailableError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "abort"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the target draws tokens; names and ranges follow OpenAI's API and its common extensions.

    Attributes:
        temperature: 0 is greedy.
        top_p: nucleus mass in (0, 1].
        top_k: number of most likely tokens kept; 0 keeps all.
        min_p: tokens below this share of the most likely token's probability are dropped; in [0, 1].
        presence_penalty: subtracted once from the logits of tokens already generated.
        frequency_penalty: subtracted per occurrence from the logits of tokens already generated.
        repetition_penalty: divides (positive) or multiplies (negative) logits of prompt and generated tokens.
        logit_bias: added to the logits of single tokens.
        seed: makes the text reproducible; None draws one.
        logprobs: None for none, else the number of most likely alternatives to report with each token.
        max_tokens: upper bound of generated tokens; None: up to the model's context.
        stop: strings that end the text; they are not part of it.
        stop_token_ids: tokens that end the text, beside the model's own end tokens.
        ignore_eos: keep going past the model's end tokens (benchmarks).
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    logprobs: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages to be rendered by the model's own chat template.

    Attributes:
        messages: OpenAI chat messages.
        tools: OpenAI tool definitions offered to the model.
        template_kwargs: extra variables of the chat template.
        answer_prefix: text with which the answer begins already; the model goes on behind it, and it is no part of
            what the engine yields.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    answer_prefix: str = ""


Prompt = str | ChatPrompt | tuple[int, ...]
"""Raw text, chat messages, or token ids."""


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """The form that the text of an answer must have.

    Attributes:
        kind: any JSON object, JSON that fits a schema, or text that a regular expression matches.
        definition: the schema as JSON text, or the expression; empty for any object.
    """

    kind: Literal["json_object", "json_schema", "regex"]
    definition: str = ""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """How the offered tools may be called.

    Attributes:
        required: at least one must be called, and nothing else may be said.
        names: those that may be called; empty: all.
        parallel: whether one answer may hold several calls.
    """

    required: bool = False
    names: tuple[str, ...] = ()
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One generation, possibly of several choices.

    Attributes:
        id: unique among running requests; names it for `Engine.abort`.
        prompt: what the target continues.
        sampling: how it draws tokens.
        n: number of choices; choice i of a seeded request uses seed + i.
        repository: id of a registered repository whose index may draft for this request.
        edited_path: path inside that repository of the file being edited, where the client knows it.
        prediction: the client's predicted output (OpenAI's `prediction`), as text.
        speculation: False forces plain decoding.
        output_format: form of the answer's text; None: free.
        tool_choice: how the tools of a `ChatPrompt` may be called.
    """

    id: str
    prompt: Prompt
    sampling: SamplingParams = SamplingParams()
    n: int = 1
    repository: str | None = None
    edited_path: str | None = None
    prediction: str | None = None
    speculation: bool = True
    output_format: OutputFormat | None = None
    tool_choice: ToolChoice = ToolChoice()

    def callable_tools(self) -> list[Mapping[str, Any]]:
        """Those of the offered tools that may be called.

        Raises:
            InvalidRequestError: a call is required and nothing can be called, or a tool is named that is not offered.
        """
        offered = list(self.prompt.tools or ()) if isinstance(self.prompt, ChatPrompt) else []
        names = self.tool_choice.names
        known = {tool["function"]["name"] for tool in offered}
        for name in names:
            if name not in known:
                raise InvalidRequestError(f"tool_choice names '{name}', which is none of the tools", "tool_choice")
        if self.tool_choice.required and not offered:
            raise InvalidRequestError("tool_choice asks for a call, but there are no tools", "tool_choice")
        return [tool for tool in offered if not names or tool["function"]["name"] in names]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A generated token with its log-probability under the model's own distribution.

    That is before bias, penalties, temperature and truncation, as OpenAI has it and vLLM by default (`raw_logprobs`).

    Attributes:
        token_id: the token.
        text: its text as far as it decodes alone.
        logprob: natural logarithm.
        top: most likely alternatives at this position, (token_id, text, logprob), best first.
    """

    token_id: int
    text: str
    logprob: float
    top: tuple[tuple[int, str, float], ...] = ()


def arguments_object(arguments: str) -> dict[str, Any]:
    """Arguments of a tool call as an object.

    Text that is none, which a model may write, comes under one key, so that nothing is lost.
    """
    try:
        parsed = json.loads(arguments or "{}")
    except ValueError:
        parsed = arguments
    return parsed if isinstance(parsed, dict) else {"arguments": parsed}


@dataclass(frozen=True, slots=True)
class Receipt:
    """What one choice cost and where its tokens came from. All counts are measured, none derived.

    Attributes:
        prompt_tokens: length of the rendered prompt.
        cached_tokens: leading prompt tokens whose KV was reused.
        completion_tokens: tokens generated, the end token included when one was drawn.
        verify_steps: passes of the target after prefill.
        drafted: nodes verified, by draft source name (lower case).
        accepted: nodes accepted, by draft source name (lower case).
        prefill_seconds: time in prefill.
        draft_seconds: time in drafters.
        verify_seconds: time in verify steps, acceptance included.
        queue_seconds: time before prefill began.
        speculation: False when the request was decoded plainly.
        warnings: why something asked for was not done (an unknown repository, say).
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    verify_steps: int = 0
    drafted: Mapping[str, int] = field(default_factory=dict)
    accepted: Mapping[str, int] = field(default_factory=dict)
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    queue_seconds: float = 0.0
    speculation: bool = True
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one verify step added to one choice.

    Attributes:
        index: the choice.
        text: text that is final (never part of a stop string or of an incomplete character).
        token_ids: tokens accepted in this step.
        logprobs: one per token of `token_ids` when asked for.
        finish_reason: set on the last chunk of the choice only.
        receipt: set on the last chunk of the choice only.
        tool_calls: OpenAI tool-call deltas, for engines that parse them.
        reasoning: reasoning text delta, for engines that separate it.
        stop_sequence: on the last chunk, the stop string that ended the choice, if one did.
    """

    index: int = 0
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: FinishReason | None = None
    receipt: Receipt | None = None
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    reasoning: str = ""
    stop_sequence: str | None = None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What clients may be told of the served model.

    Attributes:
        id: the name clients use.
        context_length: tokens that prompt and completion share.
        created: Unix time at which the engine loaded it.
    """

    id: str
    context_length: int
    created: int


def served_model(model: ModelInfo | None) -> ModelInfo:
    """The served model of an engine that keeps None until it has one.

    Raises:
        EngineUnavailableError: it has none yet.
    """
    if model is None:
        raise EngineUnavailableError("the model is still being loaded; retry shortly")
    return model


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A moment's state of an engine, for `/metrics` and `/ready`.

    Attributes:
        ready: whether requests are served now.
        running: requests being decoded.
        waiting: requests queued.
        kv_tokens_used: KV slots held, retained prefixes included.
        kv_tokens_total: KV slots there are.
        progress: rises with every prefill chunk and verify step, of any request; the API tells waiting clients that
            the engine is at work only while it does. None: the engine does not count.
    """

    ready: bool
    running: int
    waiting: int
    kv_tokens_used: int
    kv_tokens_total: int
    progress: int | None = None


class Engine(Protocol):
    """Hosts one target model. All methods are called from one event loop."""

    @property
    def model(self) -> ModelInfo:
        """The served model."""

    async def start(self) -> None:
        """Load the model and become ready.

        Raises:
            ModelError: the model cannot be loaded.
        """

    async def stop(self) -> None:
        """Abort what runs and release everything. Idempotent."""

    def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """Stream the choices of one request, interleaved.

        Closing the iterator early aborts the request: target work on it ends within one verify step.

        Raises:
            InvalidRequestError: the request cannot be served (`ContextOverflowError` when it does not fit);
                raised before the first chunk.
            OverloadedError: the queue is full; raised before the first chunk.
            EngineError: the engine failed on this request.
        """

    async def abort(self, request_id: str) -> None:
        """End a request; its stream closes with finish reason "abort". Unknown ids are ignored."""

    def stats(self) -> EngineStats:
        """Current state."""

    async def tokenize(self, prompt: str | ChatPrompt) -> list[int]:
        """Token ids of a prompt as the target would see it."""

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """Text of token ids.

        Raises:
            InvalidRequestError: an id lies outside the vocabulary.
        """
