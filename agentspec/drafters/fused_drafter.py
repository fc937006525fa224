"""The model-free tree and the EAGLE-3 head's, in one tree: whichever knows what comes next.

The model-free sources are asked first; they cost microseconds. The head is asked only where it can be expected to
bring more tokens per second: where the model-free tree is sure of the next tokens, it is left alone. Its nodes then
enter the model-free builder's heap with calibrated probabilities, and candidates extend them where both agree.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from agentspec.drafters.base import DraftReceipt, DraftRequest
from agentspec.drafters.eagle3.calibration import Calibration
from agentspec.drafters.eagle3.session import WINDOW
from agentspec.drafters.tree import ROOT, DraftTree, Source

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from agentspec.drafters.base import Budget
    from agentspec.drafters.eagle3.drafter import Eagle3Drafter
    from agentspec.drafters.eagle3.session import Eagle3Session
    from agentspec.drafters.tree_drafter import TreeDrafter, TreeSession

FORGETTING = 0.1
"""Weight of the newest observation in running means."""

EXPECTED_AT_FIRST = 1.0
"""Tokens that the head is assumed to bring before it has drafted anything."""


class StreamMemory:
    """What the target's captured streams say of a text, until the head takes it in.

    Args:
        text: tokens so far; shared with the owner, who appends.
    """

    def __init__(self, text: list[int]) -> None:
        self._text = text
        self._parts: list[Tensor] = []
        self._end = 0
        self._skipped = 0

    def add(self, start: int, streams: Tensor) -> None:
        """Streams `[q, 3 * hidden]` of the tokens from position `start` on; what lies between is not known."""
        if start > self._end:
            self._drop_all(start)
        self._parts.append(streams)
        self._end = start + len(streams)
        # The head looks back no further, so what it would never read need not be kept.
        while len(self._parts) > 1 and sum(len(part) for part in self._parts[1:]) >= WINDOW:
            self._skipped += len(self._parts.pop(0))

    def take(self, session: Eagle3Session) -> None:
        """Hand everything over whose following token is known."""
        if not self._parts:
            return
        streams = torch.cat(self._parts)
        first = self._end - len(streams)
        ready = min(len(self._text) - 1, self._end) - first
        if ready <= 0:
            return
        following = torch.tensor(self._text[first + 1 : first + 1 + ready])
        session.read(streams[:ready], following, self._skipped)
        self._skipped = 0
        self._parts = [streams[ready:]] if ready < len(streams) else []

    def _drop_all(self, start: int) -> None:
        held = sum(len(part) for part in self._parts)
        self._skipped += held + start - self._end
        self._parts = []


class FusedSession:
    """Drafting state of one request; see `agentspec.drafters.base.StreamSession`. Not thread-safe.

    Args:
        tree: the model-free session; one that is told nothing where the head drafts alone.
        head: the head's session.
        request: what is known before the first token.
        alone: draft by the head alone.
    """

    def __init__(self, tree: TreeSession, head: Eagle3Session, request: DraftRequest, *, alone: bool) -> None:
        self._tree = tree
        self._head = head
        self._alone = alone
        self._text: list[int] = request.prompt.tolist()
        self._streams = StreamMemory(self._text)
        self._calibration = Calibration()
        self._drafted: DraftTree | None = None
        self._proposed = DraftTree.empty()
        self._expected = EXPECTED_AT_FIRST
        self._draft_seconds = 0.0
        self._receipt = DraftReceipt()

    def read(self, start: int, streams: Tensor) -> None:
        """See `agentspec.drafters.base.StreamSession.read`."""
        self._streams.add(start, streams)

    def propose(self, budget: Budget) -> DraftTree:
        """See `agentspec.drafters.base.DraftSession.propose`."""
        started = time.perf_counter()
        known = DraftTree.empty() if self._alone else self._tree.propose(budget)
        self._proposed = self._with_head(budget) if self._head_pays(known, budget) else known
        self._receipt.propose_seconds += time.perf_counter() - started
        return self._proposed

    def commit(self, tokens: NDArray[np.int32]) -> None:
        """See `agentspec.drafters.base.DraftSession.commit`."""
        started = time.perf_counter()
        emitted = tokens.tolist()
        if self._drafted is not None:
            self._calibration.observe(self._drafted, emitted)
        self._count(emitted)
        self._drafted, self._proposed = None, DraftTree.empty()
        self._text += emitted
        if not self._alone:
            self._tree.commit(tokens)
        self._receipt.propose_seconds += time.perf_counter() - started

    def receipt(self) -> DraftReceipt:
        """Counts so far."""
        return self._receipt

    def _with_head(self, budget: Budget) -> DraftTree:
        """The tree of all sources, the head's among them."""
        started = time.perf_counter()
        self._streams.take(self._head)
        drafted = self._head.draft()
        seconds = time.perf_counter() - started
        self._drafted = drafted
        calibrated = replace(drafted, prob=self._calibration.apply(drafted.prob))
        self._expected += FORGETTING * (float(calibrated.path_probabilities().sum()) - self._expected)
        self._draft_seconds += (seconds - self._draft_seconds) * (FORGETTING if self._draft_seconds else 1.0)
        if budget.cost is not None:
            # What the head took is spent whatever is verified; that makes a larger tree worth its cost.
            budget = replace(budget, cost=budget.cost + np.float32(seconds))
        return self._tree.propose(budget, calibrated)

    def _head_pays(self, known: DraftTree, budget: Budget) -> bool:
        """Whether asking the head promises more tokens per second than verifying `known` as it is."""
        if budget.cost is None or self._alone:
            return True
        tokens = 1.0 + float(known.path_probabilities().sum())
        missed = 1.0 - float(known.prob[known.parents == ROOT].sum())
        verify_seconds = float(budget.cost[len(known)])
        return missed * self._expected / tokens > self._draft_seconds / verify_seconds

    def _count(self, emitted: list[int]) -> None:
        receipt, tree = self._receipt, self._proposed
        receipt.steps += 1
        for source in tree.source.tolist():
            receipt.drafted[Source(source)] = receipt.drafted.get(Source(source), 0) + 1
        for node in tree.accepted_path(emitted):
            source = Source(int(tree.source[node]))
            receipt.accepted[source] = receipt.accepted.get(source, 0) + 1


class FusedDrafter:
    """Makes `FusedSession`s; see `agentspec.drafters.base.StreamDrafter`.

    Args:
        tree: the model-free drafter.
        head: makes the head's sessions.
        alone: draft by the head alone (benchmarks).
    """

    def __init__(self, tree: TreeDrafter, head: Eagle3Drafter, *, alone: bool = False) -> None:
        self.capture = head.capture
        self._tree = tree
        self._head = head
        self._alone = alone

    def begin(self, request: DraftRequest) -> FusedSession:
        """Start drafting for one request.

        Raises:
            InvalidRequestError: see `TreeDrafter.begin`.
        """
        known = DraftRequest(prompt=request.prompt[:0]) if self._alone else request
        return FusedSession(self._tree.begin(known), self._head.begin(), request, alone=self._alone)
