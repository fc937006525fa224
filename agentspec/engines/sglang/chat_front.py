"""Our part of SGLang's chat endpoint: its parsers read one token at a time, as they do without speculation.

SGLang's parsers of tool calls and reasoning take one step with each piece of text that they are given, so what they
make of an answer depends on where it was cut: of a call that comes whole with one verify step the arguments are lost,
and text behind a call is kept or dropped. An answer must not depend on drafts, so a piece with the text of several
tokens is handed on as if they had come one by one. Runs inside SGLang's HTTP process only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentspec.engines.sglang.command import ALGORITHM
from agentspec.engines.sglang.token_pieces import TokenPieces

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

_STATE = "agentspec"
_ORDINARY_TEXT = "a"


@dataclass(slots=True)
class _Progress:
    """What was handed on of one choice.

    Attributes:
        pieces: where its tokens end.
        logprobs: of tokens that were not handed on yet.
    """

    pieces: TokenPieces
    logprobs: list[Any] = field(default_factory=list)


async def one_token_at_a_time(
    original: Callable[..., AsyncIterator[str]], serving: Any, **arguments: Any
) -> AsyncIterator[str]:
    """AROUND `OpenAIServingChat._generate_stream_content`: the events of a step, made of one token after the other.

    Args:
        original: makes the events of a text that has grown.
        serving: SGLang's chat endpoint.
        arguments: those of `original`. `content` holds all text and tokens so far; `stream_offsets`, which is kept
            for the length of a stream, also holds our progress.
    """
    if not (_is_ours() and _parses(serving, arguments["request"])):
        async for event in original(serving, **arguments):
            yield event
        return
    content, offsets = arguments["content"], arguments["stream_offsets"]
    key = (_STATE, arguments["index"])
    if key not in offsets:
        offsets[key] = _Progress(_pieces(serving.tokenizer_manager.tokenizer, arguments["request"]))
    progress: _Progress = offsets[key]
    progress.logprobs += (arguments["choice_logprobs"] or {}).get("content") or []
    text, reason = content["text"], arguments["finish_reason_type"]
    ends = progress.pieces.push(text, list(content["output_ids"]), ended=reason is not None)
    for number, end in enumerate(ends, start=1):
        logprobs, progress.logprobs = progress.logprobs, []
        step = {
            "content": {**content, "text": text[:end]},
            "finish_reason_type": reason if number == len(ends) else None,
            "choice_logprobs": {"content": logprobs} if logprobs else None,
        }
        async for event in original(serving, **arguments | step):
            yield event


def _is_ours() -> bool:
    """Whether this server runs our algorithm; others are left as they are."""
    from sglang.srt.runtime_context import get_spec

    return bool(get_spec().speculative_algorithm == ALGORITHM)


def _parses(serving: Any, request: Any) -> bool:
    """Whether SGLang's parsers read the text of a request; models with an encoder of their own read its tokens."""
    if serving._encoding_output() is not None:
        return False
    reasoning = serving.reasoning_parser and request.separate_reasoning
    return bool(reasoning or serving._tool_call_parsing_active(request))


def _pieces(tokenizer: Any, request: Any) -> TokenPieces:
    """For one choice; text is made of tokens as SGLang's detokenizer makes it."""
    template: Mapping[str, Any] = request.chat_template_kwargs or {}

    def decode(tokens: Sequence[int]) -> str:
        if not getattr(tokenizer, "is_fast", False):
            from sglang.srt.utils.patch_tokenizer import decode_without_hf_kwargs

            return str(decode_without_hf_kwargs(tokenizer, list(tokens), request.skip_special_tokens))
        text: str = tokenizer.decode(
            list(tokens),
            skip_special_tokens=request.skip_special_tokens,
            spaces_between_special_tokens=template.get("spaces_between_special_tokens", True),
        )
        return text

    return TokenPieces(decode, tokenizer.encode(_ORDINARY_TEXT, add_special_tokens=False)[-1])
