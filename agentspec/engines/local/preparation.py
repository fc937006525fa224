"""From a request as the caller made it to a generation that the scheduler can run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import structlog

from agentspec.drafters.base import DraftRequest
from agentspec.engines.base import ChatPrompt
from agentspec.engines.local.answer_grammar import answer_grammar
from agentspec.engines.local.request import Choice, Generation
from agentspec.engines.local.sampling_request import check_sampling, make_samplers
from agentspec.errors import AgentspecError, ContextOverflowError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from xgrammar.structural_tag import StructuralTag

    from agentspec.engines.base import GenerationRequest
    from agentspec.engines.local.answers.parser import AnswerParser
    from agentspec.engines.local.cache_store import CacheStore
    from agentspec.engines.local.grammar import Grammars
    from agentspec.engines.local.limits import Limits
    from agentspec.engines.local.tokenizer import Tokenizer
    from agentspec.index.snapshot import Snapshot
    from agentspec.kernels.processors import LogitsProcessor

    ProcessorFactory = Callable[[GenerationRequest, Tokenizer], Sequence[LogitsProcessor]]

_log = structlog.get_logger(__name__)

MAX_CHOICES = 128
"""Most choices of one request."""


class RepositorySource(Protocol):
    """Where an engine gets repository indexes from. Called from several threads."""

    def snapshot_for(self, repository_id: str, fingerprint: str, /) -> Snapshot:
        """The current generation of a registered repository's index.

        Raises:
            NotFoundError: no such repository.
            TokenizerMismatchError: its index was made with another tokenizer than `fingerprint` names.
            IndexStoreError: its index cannot be used.
        """


@dataclass(frozen=True, slots=True)
class Preparation:
    """Checks requests and makes generations of them. Safe to use from several threads.

    Attributes:
        tokenizer: of the target.
        vocab_size: of the target.
        context_length: tokens that prompt and completion share.
        end_tokens: the target's own.
        limits: of the scheduler.
        caches: tells whether a request can fit at all.
        speculation: False decodes everything plainly.
        grammars: compiles what prescribes the form of an answer.
        repositories: None: no request may name one.
        processors: further logits processors of a request, made anew for each choice.
    """

    tokenizer: Tokenizer
    vocab_size: int
    context_length: int
    end_tokens: frozenset[int]
    limits: Limits
    caches: CacheStore
    speculation: bool
    grammars: Grammars
    repositories: RepositorySource | None = None
    processors: ProcessorFactory | None = None

    def prepare(self, request: GenerationRequest) -> Generation:
        """Tokenise, check, and lay out a request.

        Raises:
            InvalidRequestError: it cannot be served.
        """
        sampling = request.sampling
        check_sampling(sampling, self.vocab_size)
        if not 1 <= request.n <= MAX_CHOICES:
            raise InvalidRequestError(f"n is {request.n}; it must lie between 1 and {MAX_CHOICES}", "n")
        rendered = self.tokenizer.render(request.prompt) if isinstance(request.prompt, ChatPrompt) else ""
        reasoning = self.tokenizer.chat.is_reasoning(rendered)
        prompt = self._prompt(request, rendered)
        max_new = self._max_new(len(prompt), sampling.max_tokens)
        self._check_memory(request.n, len(prompt), max_new)
        tag = answer_grammar(request, self.tokenizer.chat, self.tokenizer.special_tokens, reasoning=reasoning)
        further = self._further_processors(request, tag)
        samplers = make_samplers(sampling, prompt, self.vocab_size, further)
        # A grammar ends with an end token; nothing could be drawn behind it.
        own_ends: frozenset[int] = frozenset() if sampling.ignore_eos and tag is None else self.end_tokens
        choices = [
            Choice(
                index,
                sampler,
                tokenizer=self.tokenizer,
                request=request,
                end_tokens=own_ends.union(sampling.stop_token_ids),
                max_new=max_new,
                vocab_size=self.vocab_size,
                parser=self._parser(request, reasoning),
            )
            for index, sampler in enumerate(samplers)
        ]
        warnings: list[str] = []
        draft = None
        if self.speculation and request.speculation:
            if all(sampler.follows_path for sampler in samplers):
                draft = self._draft_request(request, prompt, warnings)
            else:
                warnings.append("decoded plainly: a logits processor of this request cannot follow a draft")
        return Generation(request, prompt, choices, draft, warnings)

    def _further_processors(
        self, request: GenerationRequest, tag: StructuralTag | None
    ) -> list[Sequence[LogitsProcessor]]:
        """Processors of each choice beside those of its sampling parameters."""
        grammar = None if tag is None else self.grammars.compile(tag)
        return [
            [
                *(self.processors(request, self.tokenizer) if self.processors else ()),
                *([] if grammar is None else [self.grammars.processor(grammar)]),
            ]
            for _ in range(request.n)
        ]

    def _parser(self, request: GenerationRequest, reasoning: bool) -> AnswerParser | None:
        if not isinstance(request.prompt, ChatPrompt):
            return None
        return self.tokenizer.chat.parser(request.prompt, reasoning=reasoning)

    def _prompt(self, request: GenerationRequest, rendered: str) -> NDArray[np.int32]:
        """Tokens of the prompt.

        Args:
            request: what is asked.
            rendered: text of its messages, where it is a conversation.
        """
        if isinstance(request.prompt, tuple):
            tokens: Sequence[int] = request.prompt
        elif isinstance(request.prompt, str):
            tokens = self.tokenizer.prompt_tokens(request.prompt)
        else:
            tokens = self.tokenizer.encode(rendered)
        if not tokens:
            raise InvalidRequestError("the prompt is empty; give at least one token", "prompt")
        for token in (min(tokens), max(tokens)):
            if not 0 <= token < self.vocab_size:
                raise InvalidRequestError(f"token {token} lies outside the vocabulary of {self.vocab_size}", "prompt")
        return np.array(tokens, np.int32)

    def _max_new(self, prompt: int, wanted: int | None) -> int:
        room = self.context_length - prompt
        asked = 1 if wanted is None else wanted
        if asked > room:
            raise ContextOverflowError(
                f"This model's maximum context length is {self.context_length} tokens. However, you requested "
                f"{prompt + asked} tokens ({prompt} in the messages, {asked} in the completion). "
                "Please reduce the length of the messages or completion.",
                "messages",
            )
        return room if wanted is None else wanted

    def _check_memory(self, n: int, prompt: int, max_new: int) -> None:
        slots = self.limits.slots(prompt, max_new)
        if not self.caches.fits([slots] * n):
            raise InvalidRequestError(
                f"{n} choices of up to {prompt + max_new} tokens need {n * slots} key/value slots and this engine has "
                f"{self.caches.total}; lower n or max_tokens, or raise engine.kv_tokens",
                "n" if n > 1 else "max_tokens",
            )

    def _draft_request(
        self, request: GenerationRequest, prompt: NDArray[np.int32], warnings: list[str]
    ) -> DraftRequest:
        prediction = None
        if request.prediction:
            prediction = np.array(self.tokenizer.encode(request.prediction), np.int32)
        return DraftRequest(
            prompt=prompt,
            repository=self._snapshot(request, warnings),
            edited_path=request.edited_path,
            prediction=prediction,
            codec=self.tokenizer,
        )

    def _snapshot(self, request: GenerationRequest, warnings: list[str]) -> Snapshot | None:
        """The repository that the request names; whatever is wrong with it, the request is served without."""
        if request.repository is None:
            return None
        if self.repositories is None:
            warnings.append("this server has no repositories: decoded without")
            return None
        try:
            return self.repositories.snapshot_for(request.repository, self.tokenizer.fingerprint)
        except AgentspecError as error:
            warnings.append(f"repository not used: {error}")
        except Exception as error:
            _log.exception("repository lookup failed", request=request.id)
            warnings.append(f"repository not used: {error!r}")
        return None
