"""Drafting of one choice: it may fail or cease to pay without harm to the text."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import structlog

from agentspec.drafters.base import StreamSession
from agentspec.drafters.tree import DraftTree
from agentspec.engines.local.speculation import Governor
from agentspec.errors import DraftTreeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from agentspec.drafters.base import Budget, Drafter, DraftRequest, DraftSession

_log = structlog.get_logger(__name__)


class ChoiceDrafting:
    """A drafter's session and what has been learnt of its worth.

    Any exception of the drafter, and any tree that breaks the contract, ends the session; the choice goes on plainly.

    Args:
        name: of the choice, for the log.
        vocab_size: of the target; trees with other tokens are refused.

    Attributes:
        tree: the draft of the current step.
        seconds: spent in the drafter.
        warning: why drafting ended early, if it did.
    """

    def __init__(self, name: str, vocab_size: int) -> None:
        self.tree = DraftTree.empty()
        self.seconds = 0.0
        self.warning: str | None = None
        self._name = name
        self._vocab_size = vocab_size
        self._session: DraftSession | None = None
        self._governor = Governor()
        self._least_path_probability = 0.0
        self._proposed = 0.0
        self._step: tuple[float, float] | None = None

    def begin(self, drafter: Drafter, request: DraftRequest) -> None:
        """Open a session."""
        with self._guarded():
            self._session = drafter.begin(request)

    def wants_draft(self) -> bool:
        """Whether the next step should draft. Ask once per step."""
        least = None if self._session is None else self._governor.least_path_probability()
        self._least_path_probability = least or 0.0
        return least is not None

    def skip(self) -> None:
        """Decode the next step plainly."""
        self.tree = DraftTree.empty()
        self._proposed = 0.0

    def propose(self, budget: Budget) -> None:
        """Set `tree` to the session's draft."""
        self.skip()
        before = self.seconds
        budget = replace(budget, min_path_prob=max(budget.min_path_prob, self._least_path_probability))
        with self._guarded():
            assert self._session is not None
            tree = self._session.propose(budget)
            tree.validate(budget.max_nodes, budget.max_depth)
            highest = int(tree.tokens.max(initial=0))
            if highest >= self._vocab_size:
                raise DraftTreeError(f"token {highest} lies outside the vocabulary of {self._vocab_size}")
            self.tree = tree
        self._proposed = self.seconds - before

    def read(self, start: int, streams: Tensor) -> None:
        """Hand the target's streams at committed tokens to a session that reads them; see `StreamSession.read`."""
        if isinstance(self._session, StreamSession):
            with self._guarded():
                self._session.read(start, streams)

    def step_cost(self, seconds: float, plain_seconds: float) -> None:
        """Note what the pass over `tree` took; weighed when its tokens are committed.

        Args:
            seconds: of the pass, as if no other sequence had drafted.
            plain_seconds: that a pass without drafts would have taken.
        """
        if len(self.tree):
            self._step = (seconds + self._proposed, plain_seconds)

    def commit(self, tokens: Sequence[int]) -> None:
        """Tell the session what the target emitted."""
        if self._step is not None:
            self._governor.observe(len(tokens), *self._step)
            self._step = None
        if self._session is not None:
            with self._guarded():
                self._session.commit(np.array(tokens, np.int32))

    def close(self) -> None:
        """Let go of the session and what it holds."""
        self._session = None
        self.tree = DraftTree.empty()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        except Exception as error:
            _log.warning("drafting failed", choice=self._name, error=repr(error))
            self._session = None
            self.warning = f"drafting failed, decoded plainly from there on: {error}"
        self.seconds += time.perf_counter() - started
