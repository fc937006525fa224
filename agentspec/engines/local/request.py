"""One generation and its choices, as the scheduler carries them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

import numpy as np

from agentspec.drafters.tree import Source
from agentspec.engines.base import Receipt, TokenLogprob
from agentspec.engines.local.answers.answer import Answer
from agentspec.engines.local.drafting import ChoiceDrafting
from agentspec.engines.local.prefix_cache import CachedText

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from agentspec.drafters.base import DraftRequest
    from agentspec.drafters.tree import DraftTree
    from agentspec.engines.base import Chunk, FinishReason, GenerationRequest
    from agentspec.engines.local.answers.parser import AnswerParser
    from agentspec.engines.local.cache_store import CacheStore
    from agentspec.engines.local.kv_cache import KVCache
    from agentspec.engines.local.tokenizer import Tokenizer
    from agentspec.kernels.sampling import Draw, Sampler


class Phase(Enum):
    """Where a generation stands."""

    WAITING = auto()
    PREFILL = auto()
    DECODE = auto()
    DONE = auto()


@dataclass(slots=True)
class Counters:
    """What one choice cost; the mutable form of `Receipt`."""

    verify_steps: int = 0
    drafted: list[int] = field(default_factory=lambda: [0] * len(Source))
    accepted: list[int] = field(default_factory=lambda: [0] * len(Source))
    verify_seconds: float = 0.0

    def count(self, tree: DraftTree, path: Sequence[int]) -> None:
        """Count one verify step."""
        self.verify_steps += 1
        for source in tree.source.tolist():
            self.drafted[source] += 1
        for source in tree.source[list(path)].tolist():
            self.accepted[source] += 1


class Choice:
    """One choice of a generation: its text, its cache and its drafts.

    Args:
        index: of the choice within its generation.
        sampler: draws its tokens.
        tokenizer: of the target.
        request: what was asked for.
        end_tokens: tokens that end the text.
        max_new: most tokens to generate.
        vocab_size: of the target.
        parser: tells reasoning and tool calls from text; None: all is text.
    """

    def __init__(
        self,
        index: int,
        sampler: Sampler,
        *,
        tokenizer: Tokenizer,
        request: GenerationRequest,
        end_tokens: frozenset[int],
        max_new: int,
        vocab_size: int,
        parser: AnswerParser | None = None,
    ) -> None:
        self.index = index
        self.sampler = sampler
        self.max_new = max_new
        self.generated: list[int] = []
        self.cache: KVCache | None = None
        self.drafting = ChoiceDrafting(f"{request.id}/{index}", vocab_size)
        self.counters = Counters()
        self._tokenizer = tokenizer
        self._end_tokens = end_tokens
        self._wants_logprobs = request.sampling.logprobs is not None
        self._answer = Answer(
            tokenizer.visible_text if parser is None else tokenizer.visible_with(tokenizer.chat.marks),
            request.sampling.stop,
            parser,
            several_calls=request.tool_choice.parallel,
        )
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprob] = []

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the text ended; None while it goes on."""
        return self._answer.finish_reason

    @property
    def running(self) -> bool:
        """Whether tokens are still to come."""
        return self.finish_reason is None

    @property
    def remaining(self) -> int:
        """Most tokens still to come."""
        return self.max_new - len(self.generated)

    def accept(self, draw: Draw) -> bool:
        """Append a drawn token; True when the text ends with it."""
        self.generated.append(draw.token)
        self._tokens.append(draw.token)
        if self._wants_logprobs:
            self._logprobs.append(self._token_logprob(draw))
        if draw.token in self._end_tokens:
            self._answer.end("stop")
        else:
            self._answer.push(draw.token)
            if self.remaining == 0:
                self._answer.end("length")
        return not self.running

    def abort(self) -> None:
        """End the text where it is."""
        self._answer.end("abort")

    def _token_logprob(self, draw: Draw) -> TokenLogprob:
        assert draw.logprob is not None
        decode = self._tokenizer.decode
        top = tuple((token, decode([token]), logprob) for token, logprob in draw.top)
        return TokenLogprob(draw.token, decode([draw.token]), draw.logprob, top)

    def take_chunks(self, receipt: Receipt | None) -> list[Chunk]:
        """What was accepted since the last call.

        Args:
            receipt: for the last chunk.
        """
        tokens, self._tokens = self._tokens, []
        logprobs, self._logprobs = self._logprobs, []
        return self._answer.take(self.index, tokens, logprobs if self._wants_logprobs else None, receipt)


class Generation:
    """One request on its way through the scheduler.

    Args:
        request: what was asked for.
        prompt: `int32[P]`, at least one token.
        choices: one per wanted choice.
        draft: what the drafter may know; None decodes plainly.
        warnings: why something asked for will not be done.

    Attributes:
        phase: where it stands.
        begun: whether a first chunk of the prompt went through the target.
        turn: rises with every chunk of any prompt; who has the lowest is next.
        cached_tokens: leading prompt tokens that were not computed for it.
    """

    def __init__(
        self,
        request: GenerationRequest,
        prompt: NDArray[np.int32],
        choices: Sequence[Choice],
        draft: DraftRequest | None,
        warnings: Sequence[str] = (),
    ) -> None:
        self.id = request.id
        self.prompt = prompt
        self.choices = tuple(choices)
        self.draft = draft
        self.warnings = tuple(warnings)
        self.phase = Phase.WAITING
        self.arrived = time.perf_counter()
        self.queue_seconds = 0.0
        self.prefill_seconds = 0.0
        self.cached_tokens = 0
        self.turn = 0
        self.begun = False
        self.prompt_streams: list[tuple[int, Tensor]] = []

    def text(self, choice: Choice) -> CachedText:
        """The committed text of a choice with the cache that holds it."""
        assert choice.cache is not None
        tokens = np.concatenate([self.prompt, np.array(choice.generated, np.int32)])
        return CachedText(tokens[: choice.cache.length], choice.cache)

    def start(self, caches: Sequence[KVCache]) -> None:
        """Leave the queue with one cache per choice; what the first one holds is a beginning of the prompt."""
        self.phase = Phase.PREFILL
        self.queue_seconds = time.perf_counter() - self.arrived
        for choice, cache in zip(self.choices, caches, strict=True):
            choice.cache = cache

    def begin_prefill(self, store: CacheStore, running: Sequence[Generation]) -> None:
        """Before the first chunk: take over what has become known of the prompt since the admission."""
        cache = self.choices[0].cache
        assert cache is not None
        store.extend(cache, self.prompt, [other.text(other.choices[0]) for other in running if other is not self])
        self.begun = True
        self.cached_tokens = cache.length

    def finish(self) -> None:
        """Let go of everything that is not the caller's."""
        self.phase = Phase.DONE
        self.prompt_streams = []
        for choice in self.choices:
            choice.cache = None
            choice.drafting.close()

    def receipt(self, choice: Choice) -> Receipt:
        """What a choice cost so far."""
        counters = choice.counters
        return Receipt(
            prompt_tokens=len(self.prompt),
            cached_tokens=self.cached_tokens,
            completion_tokens=len(choice.generated),
            verify_steps=counters.verify_steps,
            drafted=_by_name(counters.drafted),
            accepted=_by_name(counters.accepted),
            prefill_seconds=self.prefill_seconds,
            draft_seconds=choice.drafting.seconds,
            verify_seconds=counters.verify_seconds,
            queue_seconds=self.queue_seconds,
            speculation=self.draft is not None and (any(counters.drafted) or choice.drafting.warning is None),
            warnings=self.warnings if choice.drafting.warning is None else (*self.warnings, choice.drafting.warning),
        )


def _by_name(counts: Sequence[int]) -> dict[str, int]:
    return {source.name.lower(): counts[source] for source in Source if counts[source]}
