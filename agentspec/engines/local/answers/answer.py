"""The answer of one choice while its tokens come: text that is final, cut at stop strings and told apart."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agentspec.engines.base import Chunk
from agentspec.engines.local.answers.parts import Part
from agentspec.engines.local.detokenizer import Detokenizer
from agentspec.engines.local.stop_strings import StopStrings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentspec.engines.base import FinishReason, Receipt, TokenLogprob
    from agentspec.engines.local.answers.parser import AnswerParser


class Answer:
    """One choice's answer.

    Args:
        decode: text of token ids.
        stops: strings that end the text.
        parser: tells reasoning and calls from text; None: all is text.
        several_calls: False ends the answer with its first call.

    Attributes:
        finish_reason: why it ended; None while it goes on.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        stops: Sequence[str],
        parser: AnswerParser | None = None,
        *,
        several_calls: bool = True,
    ) -> None:
        self.finish_reason: FinishReason | None = None
        self._detokenizer = Detokenizer(decode)
        self._stops = StopStrings(stops)
        self._parser = parser
        self._several_calls = several_calls
        self._stop_sequence: str | None = None
        self._parts: list[Part] = []

    def push(self, token: int) -> None:
        """Add a token that is no end token."""
        self._add(self._detokenizer.push(token))
        if self.finish_reason is None and not self._several_calls and self._has_called():
            self._conclude("stop")

    def end(self, reason: FinishReason) -> None:
        """Nothing more comes; has no effect on an answer that has ended."""
        if self.finish_reason is None:
            self._add(self._detokenizer.flush(truncated=reason != "stop"))
        if self.finish_reason is None:
            self._give(self._stops.flush())
            self._conclude(reason)

    def take(
        self,
        index: int,
        tokens: Sequence[int],
        logprobs: Sequence[TokenLogprob] | None,
        receipt: Receipt | None,
    ) -> list[Chunk]:
        """What was added since the last time.

        Readers of a chunk take its reasoning first, then its text, then its calls; what came in another order goes
        into further chunks. Many look at one delta of a call only, so a chunk has no more.

        Args:
            index: of the choice.
            tokens: accepted since the last time.
            logprobs: one per token, when asked for.
            receipt: for the last chunk.
        """
        chunks = [
            Chunk(
                index=index,
                text="".join(part.text for part in group),
                reasoning="".join(part.reasoning for part in group),
                tool_calls=tuple(part.tool_call for part in group if part.tool_call is not None),
            )
            for group in _grouped(self._parts)
        ]
        self._parts = []
        chunks[0] = replace(chunks[0], token_ids=tuple(tokens), logprobs=None if logprobs is None else tuple(logprobs))
        if self.finish_reason is not None:
            chunks[-1] = replace(
                chunks[-1], finish_reason=self.finish_reason, receipt=receipt, stop_sequence=self._stop_sequence
            )
        return chunks

    def _add(self, text: str) -> None:
        released, stop = self._stops.push(text)
        self._give(released)
        if stop is not None:
            self._stop_sequence = stop
            self._conclude("stop")

    def _give(self, text: str) -> None:
        if self._parser is not None:
            self._parts += self._parser.push(text)
        elif text:
            self._parts.append(Part(text=text))

    def _has_called(self) -> bool:
        return self._parser is not None and self._parser.calls > 0 and not self._parser.in_call

    def _conclude(self, reason: FinishReason) -> None:
        if self._parser is not None:
            self._parts += self._parser.end()
            if self._parser.calls and reason == "stop":
                reason = "tool_calls"
        self.finish_reason = reason


def _grouped(parts: Sequence[Part]) -> list[list[Part]]:
    """Parts by the chunk that they go into, at least one; a chunk holds at most one delta of each call."""
    groups: list[list[Part]] = [[]]
    for part in parts:
        last = groups[-1][-1] if groups[-1] else part
        if part.continues(last):
            groups[-1][-1] = last.joined(part)
        elif part.kind < last.kind or (part.index is not None and part.index == last.index and part is not last):
            groups.append([part])
        else:
            groups[-1].append(part)
    return groups
