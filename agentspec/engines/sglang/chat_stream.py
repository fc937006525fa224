"""One choice through SGLang's chat endpoint, whose tool and reasoning parsers work on the text.

That endpoint reports no token ids while it streams: `Chunk.token_ids` is empty and log-probabilities carry
`UNKNOWN_TOKEN` with the token's text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentspec.engines.base import Chunk, TokenLogprob
from agentspec.engines.local.stop_strings import StopStrings
from agentspec.engines.sglang.answer import finish_reason, receipt
from agentspec.engines.sglang.sampling import chat_format_params

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from agentspec.engines.base import ChatPrompt
    from agentspec.engines.sglang.choice import Choice
    from agentspec.engines.sglang.client import SGLangClient

UNKNOWN_TOKEN = -1


class ChatStream:
    """Streams one choice.

    Args:
        client: of the server.
        choice: what to ask.
        prompt: the messages.
    """

    def __init__(self, client: SGLangClient, choice: Choice, prompt: ChatPrompt) -> None:
        sampling = choice.sampling
        self._client = client
        self._choice = choice
        self._stops = StopStrings(sampling.stop)
        self._body = {
            **choice.params,
            "rid": choice.name,
            "messages": list(prompt.messages),
            **choice.tool_params,
            **chat_format_params(choice.output_format),
            "chat_template_kwargs": dict(prompt.template_kwargs) or None,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_completion_tokens": sampling.max_tokens,
            "seed": choice.seed,
            "logprobs": sampling.logprobs is not None,
            "top_logprobs": sampling.logprobs or None,
            "custom_params": choice.custom_params,
        }

    async def chunks(self) -> AsyncIterator[Chunk]:
        """What each event adds; the last chunk carries the finish reason and the receipt."""
        ended: str | None = None
        matched: Any = None
        usage: Mapping[str, Any] = {}
        async for event in self._client.stream("/v1/chat/completions", self._body):
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                ended = choice.get("finish_reason") or ended
                matched = choice.get("matched_stop") or matched
                chunk = self._chunk(choice)
                if chunk.text or chunk.reasoning or chunk.tool_calls or chunk.logprobs:
                    yield chunk
        yield await self._last(ended or "abort", matched, usage)

    def _chunk(self, choice: Mapping[str, Any]) -> Chunk:
        delta = choice["delta"]
        text, _ = self._stops.push(delta.get("content") or "")
        return Chunk(
            index=self._choice.index,
            text=text,
            reasoning=delta.get("reasoning_content") or "",
            tool_calls=tuple(delta.get("tool_calls") or ()),
            logprobs=_logprobs(choice.get("logprobs")),
        )

    async def _last(self, ended: str, matched: Any, usage: Mapping[str, Any]) -> Chunk:
        held = self._stops.flush()
        details = usage.get("prompt_tokens_details") or {}
        return Chunk(
            index=self._choice.index,
            text="" if isinstance(matched, str) and matched.startswith(held) else held,
            finish_reason=finish_reason(ended),
            stop_sequence=matched if matched in self._choice.sampling.stop else None,
            receipt=receipt(
                await self._client.receipt(self._choice.name),
                prompt_tokens=usage.get("prompt_tokens", 0),
                cached_tokens=details.get("cached_tokens") or 0,
                completion_tokens=usage.get("completion_tokens", 0),
                timings={},
                warnings=self._choice.warnings,
            ),
        )


def _logprobs(content: Mapping[str, Any] | None) -> tuple[TokenLogprob, ...] | None:
    if content is None:
        return None
    return tuple(
        TokenLogprob(
            UNKNOWN_TOKEN,
            item["token"],
            item["logprob"],
            tuple((UNKNOWN_TOKEN, top["token"], top["logprob"]) for top in item.get("top_logprobs") or ()),
        )
        for item in content.get("content") or ()
    )
