"""An engine that says what its script says: one token a character, with failures, delays and a record of all calls."""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING

from agentspec.engines.base import Chunk, EngineStats, GenerationRequest, ModelInfo, Receipt, TokenLogprob
from agentspec.errors import ContextOverflowError, InvalidRequestError, OverloadedError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from agentspec.engines.base import ChatPrompt

CONTEXT = 4096
CHARACTERS_PER_CHUNK = 4
FIRST_SPECIAL = 0x110000
"""Token of the first special token of a tokenizer that has some."""

QWEN = [
    "<|fim_prefix|>",
    "<|fim_suffix|>",
    "<|fim_middle|>",
    "<|file_sep|>",
    "<|endoftext|>",
    "<|im_end|>",
    "<|repo_name|>",
]
"""Special tokens of Qwen's coders."""

Step = Chunk | float | Exception
"""A chunk to yield, seconds to sleep, or an error to raise."""


def tool_call(index: int, call_id: str | None = None, **function: str | None) -> Chunk:
    """A chunk with a tool-call delta; the first one of a call has its id."""
    head = {"id": call_id, "type": "function"} if call_id else {}
    return Chunk(0, tool_calls=({**head, "index": index, "function": function},))


class ScriptedEngine:
    """Answers every prompt with `reply`, unless `script` says otherwise.

    Attributes:
        special: texts that are one token each; `reset` keeps them.
        reply: text of every choice, followed by `#<index>` for choices after the first.
        script: replaces the whole behaviour of one request.
        delay: seconds before each chunk.
        capacity: running requests from which on new ones are refused.
        progress: what `stats` shows as such.
        requests: every request, in order.
        running: ids of requests that are being served.
        aborted: ids given to `abort`.
        freed: `time.perf_counter()` at which each request's slot became free.
    """

    def __init__(self) -> None:
        self.model = ModelInfo("scripted-model", CONTEXT, 1_700_000_000)
        self.ready = False
        self.special: list[str] = []
        self.reset()

    def reset(self) -> None:
        """Forget the script and the record."""
        self.reply = "def add(a, b):\n    return a + b\n"
        self.script: Callable[[GenerationRequest], Sequence[Step]] | None = None
        self.delay = 0.0
        self.capacity = 1000
        self.progress: int | None = None
        self.requests: list[GenerationRequest] = []
        self.running: set[str] = set()
        self.aborted: list[str] = []
        self.freed: dict[str, float] = {}

    async def start(self) -> None:
        self.ready = True

    async def stop(self) -> None:
        self.ready = False

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    def stats(self) -> EngineStats:
        return EngineStats(
            self.ready, len(self.running), 0, kv_tokens_used=0, kv_tokens_total=CONTEXT, progress=self.progress
        )

    async def tokenize(self, prompt: str | ChatPrompt) -> list[int]:
        if not self.special:
            return [ord(character) for character in _text(prompt)]
        pieces = re.split("(" + "|".join(map(re.escape, self.special)) + ")", _text(prompt))
        tokens: list[int] = []
        for piece in pieces:
            tokens += [FIRST_SPECIAL + self.special.index(piece)] if piece in self.special else map(ord, piece)
        return tokens

    async def detokenize(self, tokens: Sequence[int]) -> str:
        for token in tokens:
            if token >= 0x110000 or 0xD800 <= token < 0xE000:
                raise InvalidRequestError(f"token {token} is outside the vocabulary", "tokens")
        return "".join(chr(token) for token in tokens)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Chunk, None]:
        self.requests.append(request)
        if len(self.running) >= self.capacity:
            raise OverloadedError("all slots and the queue are full", retry_after=2.5)
        self.running.add(request.id)
        try:
            for step in self.script(request) if self.script else self._reply(request):
                if isinstance(step, float):
                    await asyncio.sleep(step)
                elif isinstance(step, Exception):
                    raise step
                else:
                    await asyncio.sleep(self.delay)
                    yield step
        finally:
            self.running.discard(request.id)
            self.freed[request.id] = time.perf_counter()

    def _reply(self, request: GenerationRequest) -> list[Step]:
        prompt_tokens = len(request.prompt) if isinstance(request.prompt, tuple) else len(_text(request.prompt))
        asked = request.sampling.max_tokens or 1
        if prompt_tokens + asked > CONTEXT:
            raise ContextOverflowError(
                f"This model's maximum context length is {CONTEXT} tokens. However, you requested "
                f"{prompt_tokens + asked} tokens ({prompt_tokens} in the messages, {asked} in the completion).",
                "messages",
            )
        steps: list[Step] = []
        for index in range(request.n):
            steps += self._choice(request, index, prompt_tokens)
        # Choices are decoded side by side, so their chunks interleave.
        return sorted(steps, key=lambda chunk: chunk.token_ids == ())

    def _choice(self, request: GenerationRequest, index: int, prompt_tokens: int) -> list[Chunk]:
        text = self.reply + (f"#{index}" if index else "")
        finish = "stop"
        for stop in request.sampling.stop:
            text = text.partition(stop)[0]
        if request.sampling.max_tokens is not None and len(text) > request.sampling.max_tokens:
            text, finish = text[: request.sampling.max_tokens], "length"
        pieces = [text[at : at + CHARACTERS_PER_CHUNK] for at in range(0, len(text), CHARACTERS_PER_CHUNK)]
        chunks = [Chunk(index, piece, tuple(map(ord, piece)), _logprobs(request, piece)) for piece in pieces]
        predicted = len(text) if request.prediction else 0
        receipt = Receipt(
            prompt_tokens=prompt_tokens,
            cached_tokens=prompt_tokens // 2,
            completion_tokens=len(text),
            verify_steps=len(pieces),
            drafted={"prediction": predicted + 5, "repository": 3} if predicted else {"repository": 3},
            accepted={"prediction": predicted // 2, "repository": 1} if predicted else {"repository": 1},
            prefill_seconds=0.01,
            draft_seconds=0.001,
            verify_seconds=0.02,
            queue_seconds=0.003,
            speculation=request.speculation,
        )
        return [*chunks, Chunk(index, finish_reason=finish, receipt=receipt)]


def _logprobs(request: GenerationRequest, text: str) -> tuple[TokenLogprob, ...] | None:
    if request.sampling.logprobs is None:
        return None
    top = tuple((ord("a") + rank, chr(ord("a") + rank), -1.0 - rank) for rank in range(request.sampling.logprobs))
    return tuple(TokenLogprob(ord(character), character, -0.5, top) for character in text)


def _text(prompt: str | ChatPrompt) -> str:
    if isinstance(prompt, str):
        return prompt
    return "".join(f"<{message['role']}>{message['content']}" for message in prompt.messages)
