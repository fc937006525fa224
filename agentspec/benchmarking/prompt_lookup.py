"""Prompt lookup as transformers does it, behind the drafter contract: its own code chooses what is drafted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from agentspec.benchmarking.baselines import chain
from agentspec.drafters.base import DraftReceipt
from agentspec.drafters.tree import DraftTree, Source

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from agentspec.drafters.base import Budget, DraftRequest

DRAFTED_TOKENS = 10
"""The value that transformers' own documentation sets `prompt_lookup_num_tokens` to."""

MAX_NGRAM = 2
"""transformers' default."""

_ROOM = 1024
"""Tokens that the text may grow by, beside its own length, before it is copied."""


class PromptLookupSession:
    """See `agentspec.drafters.base.DraftSession`.

    Args:
        request: what is known before the first token.
        drafted_tokens: most tokens drafted at once; None: as many as the budget allows.
        max_ngram: longest n-gram that is looked up.
    """

    def __init__(self, request: DraftRequest, drafted_tokens: int | None, max_ngram: int) -> None:
        self._drafted_tokens = drafted_tokens
        self._max_ngram = max_ngram
        self._text = torch.empty(2 * len(request.prompt) + _ROOM, dtype=torch.int64)
        self._length = 0
        self._append(request.prompt)
        self._drafted = 0
        self._receipt = DraftReceipt()

    def propose(self, budget: Budget) -> DraftTree:
        """A chain of what followed the first place where the last tokens stood before."""
        count = min(budget.max_nodes, budget.max_depth)
        if self._drafted_tokens is not None:
            count = min(count, self._drafted_tokens)
        lookup = PromptLookupCandidateGenerator(
            num_output_tokens=count,
            max_matching_ngram_size=self._max_ngram,
            max_length=self._length + count + 1,
        )
        found, _ = lookup.get_candidates(self._text[None, : self._length])
        tokens = found[0, self._length :].int().numpy()
        self._drafted = len(tokens)
        return chain(tokens, Source.REQUEST)

    def commit(self, tokens: NDArray[np.int32]) -> None:
        """See `agentspec.drafters.base.DraftSession.commit`."""
        self._append(tokens)
        self._receipt.steps += 1
        for counts, number in ((self._receipt.drafted, self._drafted), (self._receipt.accepted, len(tokens) - 1)):
            counts[Source.REQUEST] = counts.get(Source.REQUEST, 0) + number
        self._drafted = 0

    def receipt(self) -> DraftReceipt:
        """Counts so far."""
        return self._receipt

    def _append(self, tokens: NDArray[np.int32]) -> None:
        needed = self._length + len(tokens)
        if needed > len(self._text):
            self._text = torch.cat([self._text, torch.empty(needed, dtype=torch.int64)])
        self._text[self._length : needed] = torch.from_numpy(tokens)
        self._length = needed


class PromptLookupDrafter:
    """Makes `PromptLookupSession`s, see there for the arguments."""

    def __init__(self, drafted_tokens: int | None = DRAFTED_TOKENS, max_ngram: int = MAX_NGRAM) -> None:
        self._drafted_tokens = drafted_tokens
        self._max_ngram = max_ngram

    def begin(self, request: DraftRequest) -> PromptLookupSession:
        """Start drafting for one request."""
        return PromptLookupSession(request, self._drafted_tokens, self._max_ngram)
