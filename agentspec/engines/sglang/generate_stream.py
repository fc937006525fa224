"""One choice through SGLang's native endpoint, which reports tokens as well as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentspec.engines.base import Chunk, TokenLogprob
from agentspec.engines.local.stop_strings import StopStrings
from agentspec.engines.sglang.answer import failure, finish_reason, receipt
from agentspec.engines.sglang.receipts import RECEIPT_KEY
from agentspec.engines.sglang.sampling import format_params

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from agentspec.engines.sglang.choice import Choice
    from agentspec.engines.sglang.client import SGLangClient


class GenerateStream:
    """Streams one choice.

    Args:
        client: of the server.
        choice: what to ask.
        prompt: text or token ids.
    """

    def __init__(self, client: SGLangClient, choice: Choice, prompt: str | Sequence[int]) -> None:
        sampling = choice.sampling
        self._client = client
        self._choice = choice
        self._stops = StopStrings(sampling.stop)
        self._text = self._released = 0
        self._tokens = self._logprob_rows = 0
        self._body = {
            "rid": choice.name,
            "text" if isinstance(prompt, str) else "input_ids": prompt,
            "stream": True,
            "return_logprob": sampling.logprobs is not None,
            "top_logprobs_num": sampling.logprobs or 0,
            "return_text_in_logprobs": True,
            "sampling_params": {
                **choice.params,
                **format_params(choice.output_format),
                "max_new_tokens": sampling.max_tokens,
                "sampling_seed": choice.seed,
                "custom_params": choice.custom_params,
            },
        }

    async def chunks(self) -> AsyncIterator[Chunk]:
        """What each step adds; the last one carries the finish reason and the receipt."""
        async for event in self._client.stream("/generate", self._body):
            chunk = self._chunk(event)
            if chunk.text or chunk.token_ids or chunk.finish_reason:
                yield chunk

    def _chunk(self, event: Mapping[str, Any]) -> Chunk:
        """The difference between this event, which repeats everything so far, and the last one."""
        meta = event["meta_info"]
        reason = meta["finish_reason"]
        if reason is not None and (error := failure(reason)) is not None:
            raise error
        tokens = event["output_ids"][self._tokens :]
        self._tokens += len(tokens)
        return Chunk(
            index=self._choice.index,
            text=self._new_text(event["text"], reason is not None),
            token_ids=tuple(tokens),
            logprobs=None if self._choice.sampling.logprobs is None else self._new_logprobs(meta),
            finish_reason=None if reason is None else finish_reason(reason["type"]),
            stop_sequence=self._stop_sequence(reason),
            receipt=None
            if reason is None
            else receipt(
                next(iter(meta.get(RECEIPT_KEY, ())), None),
                prompt_tokens=meta["prompt_tokens"],
                cached_tokens=meta.get("cached_tokens") or 0,
                completion_tokens=meta["completion_tokens"],
                timings=meta,
                warnings=self._choice.warnings,
            ),
        )

    def _stop_sequence(self, reason: Mapping[str, Any] | None) -> str | None:
        """The stop string that ended the text; SGLang names the end token where one did."""
        matched = None if reason is None else reason.get("matched")
        return matched if matched in self._choice.sampling.stop else None

    def _new_text(self, text: str, ended: bool) -> str:
        """Text that is final; what may yet turn out to be a stop string waits, since SGLang cuts it at the end only."""
        if ended:
            return text[self._released :]
        piece, _ = self._stops.push(text[self._text :])
        self._text = len(text)
        self._released += len(piece)
        return piece

    def _new_logprobs(self, meta: Mapping[str, Any]) -> tuple[TokenLogprob, ...]:
        rows = meta.get("output_token_logprobs", ())[self._logprob_rows :]
        tops = meta.get("output_top_logprobs", ())[self._logprob_rows :]
        found = []
        for number, (logprob, token, text) in enumerate(rows):
            top = tops[number] if number < len(tops) and tops[number] else ()
            best = tuple((other, other_text or "", value) for value, other, other_text in top)
            found.append(TokenLogprob(token, text or "", logprob, best))
        self._logprob_rows += len(found)
        return tuple(found)
