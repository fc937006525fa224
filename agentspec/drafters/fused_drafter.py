"""The model-free tree and the EAGLE-3 head's, in one tree: whichever knows what comes next.

The model-free sources are asked first; they cost microseconds. The head is asked only where it can be expected to
bring more tokens per second: where the model-free tree is sure of the next tokens, it is left alone. Its nodes then
enter the model-free builder's heap, which weighs both drafters' evidence together, and candidates extend them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from agentspec.drafters.base import DraftReceipt, DraftRequest
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

GAIN_AT_FIRST = 1.0
"""Tokens that the head is assumed to bring where the model-free sources know nothing, before it has drafted."""

RETRY_AFTER = 32
"""Rounds after which a head that did not pay is asked once more: the text may have changed."""

SURE = 0.5
"""Where only paths at least so likely are asked for, the head is not: it is rarely that sure, and costs time."""

CATCHING_UP = 32
"""Tokens read at once from which on reading says nothing of what a pass takes."""


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

    @property
    def waiting(self) -> int:
        """Tokens whose streams have not been handed over."""
        return sum(len(part) for part in self._parts)

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
        # In most steps there is one part, all of which is ready; every call of torch then costs more than the copy.
        streams = self._parts[0] if len(self._parts) == 1 else torch.cat(self._parts)
        first = self._end - len(streams)
        ready = min(len(self._text) - 1, self._end) - first
        if ready <= 0:
            return
        following = torch.from_numpy(np.array(self._text[first + 1 : first + 1 + ready], np.int64))
        whole = ready == len(streams)
        session.read(streams if whole else streams[:ready], following, self._skipped)
        self._skipped = 0
        self._parts = [] if whole else [streams[ready:]]

    def _drop_all(self, start: int) -> None:
        self._skipped += self.waiting + start - self._end
        self._parts = []


@dataclass(frozen=True, slots=True)
class _Round:
    """A round in which the head was asked.

    Attributes:
        known: the model-free tree that would have been verified otherwise.
        stretch: verify time with the head's nodes, in that of `known`.
    """

    known: DraftTree
    stretch: float


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
        self._proposed = DraftTree.empty()
        self._round: _Round | None = None
        self._brought = GAIN_AT_FIRST
        self._missing = 1.0
        self._pass_seconds = 0.0
        self._token_seconds = 0.0
        self._passes = 1.0
        self._declined = 0
        self._receipt = DraftReceipt()

    def read(self, start: int, streams: Tensor) -> None:
        """See `agentspec.drafters.base.StreamSession.read`."""
        self._streams.add(start, streams)

    def propose(self, budget: Budget) -> DraftTree:
        """See `agentspec.drafters.base.DraftSession.propose`."""
        started = time.perf_counter()
        known = DraftTree.empty() if self._alone else self._tree.propose(budget)
        if self._head_pays(known, budget):
            self._declined = 0
            self._proposed = self._with_head(known, budget)
        else:
            self._declined += 1
            self._proposed = known
        self._receipt.propose_seconds += time.perf_counter() - started
        return self._proposed

    def commit(self, tokens: NDArray[np.int32]) -> None:
        """See `agentspec.drafters.base.DraftSession.commit`."""
        started = time.perf_counter()
        emitted = tokens.tolist()
        if self._round is not None:
            self._judge(self._round, emitted)
        self._count(emitted)
        self._round, self._proposed = None, DraftTree.empty()
        self._text += emitted
        if not self._alone:
            self._tree.commit(tokens)
        self._receipt.propose_seconds += time.perf_counter() - started

    def receipt(self) -> DraftReceipt:
        """Counts so far."""
        return self._receipt

    def _with_head(self, known: DraftTree, budget: Budget) -> DraftTree:
        """The tree of all sources, the head's among them."""
        # A pass must bring what the model-free tree would in that time.
        rate = None if budget.cost is None else _tokens(known) / float(budget.cost[len(known)])
        level_gain = None if rate is None else self._pass_seconds * rate
        started = time.perf_counter()
        waiting = self._streams.waiting
        self._streams.take(self._head)
        read = time.perf_counter()
        drafted = self._head.draft(level_gain)
        done = time.perf_counter()
        self._learn_times(waiting, read - started, int(drafted.depths().max(initial=1)), done - read)
        seconds = done - started
        if budget.cost is None:
            return self._tree.propose(budget, drafted)
        # What the head took is spent whatever is verified; that makes a larger tree worth its cost.
        spent = replace(budget, cost=budget.cost + np.float32(seconds))
        fused = self._tree.propose(spent, drafted)
        self._round = _Round(known, float(budget.cost[len(fused)]) / float(budget.cost[len(known)]))
        return fused

    def _learn_times(self, read: int, read_seconds: float, passes: int, draft_seconds: float) -> None:
        """Tell what a pass takes from what reading a further token adds; reading is the first pass."""
        forget = FORGETTING if self._pass_seconds else 1.0
        few = read < CATCHING_UP
        if few or not self._pass_seconds:
            seconds = draft_seconds + read_seconds if few else draft_seconds
            self._pass_seconds += forget * (seconds / passes - self._pass_seconds)
        self._passes += FORGETTING * (passes - self._passes)
        if read:
            further = max(0.0, read_seconds - self._pass_seconds) / read
            self._token_seconds += forget * (further - self._token_seconds)

    def _head_pays(self, known: DraftTree, budget: Budget) -> bool:
        """Whether asking the head promises more tokens per second than verifying `known` as it is.

        What it brings beyond the verify time it adds is in proportion to how often the model-free tree has nothing.
        """
        if budget.min_path_prob >= SURE:
            return False
        if budget.cost is None or self._alone or self._declined >= RETRY_AFTER:
            return True
        # What must be read after a long copy serves later drafts too, so not all of it counts here.
        reading = self._token_seconds * min(self._streams.waiting, CATCHING_UP)
        share_of_step = (self._pass_seconds * self._passes + reading) / float(budget.cost[len(known)])
        return _missed(known) * self._brought > _tokens(known) * share_of_step * self._missing

    def _judge(self, asked: _Round, emitted: list[int]) -> None:
        """Learn from the verdict what the head brought: the model-free tree would have had its part of `emitted`."""
        without = len(asked.known.accepted_path(emitted)) + 1
        self._brought += FORGETTING * (len(emitted) - without * asked.stretch - self._brought)
        self._missing += FORGETTING * (_missed(asked.known) - self._missing)

    def _count(self, emitted: list[int]) -> None:
        receipt, tree = self._receipt, self._proposed
        receipt.steps += 1
        for source in tree.source.tolist():
            receipt.drafted[Source(source)] = receipt.drafted.get(Source(source), 0) + 1
        for node in tree.accepted_path(emitted):
            source = Source(int(tree.source[node]))
            receipt.accepted[source] = receipt.accepted.get(source, 0) + 1


def _tokens(tree: DraftTree) -> float:
    """Expected tokens of a verify step over `tree`, the bonus token among them."""
    return 1.0 + float(tree.path_probabilities().sum())


def _missed(tree: DraftTree) -> float:
    """Probability that the next token is none of the tree's."""
    nodes = zip(tree.parents.tolist(), tree.prob.tolist(), strict=True)
    return 1.0 - float(sum(prob for parent, prob in nodes if parent == ROOT))


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
