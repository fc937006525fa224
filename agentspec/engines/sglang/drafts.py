"""Drafting state of the requests that a worker decodes, and the trees of one round."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from agentspec.drafters.base import Budget, DraftRequest
from agentspec.drafters.tree import DraftTree, Source
from agentspec.drafters.warm_up import warm_up_request
from agentspec.engines.sglang.binding import RequestBinding, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from agentspec.drafters.base import TextCodec
    from agentspec.engines.sglang.snapshots import SnapshotFollower

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


class ExtendableSession(Protocol):
    """A draft session that merges another drafter's tree into its own."""

    def propose(self, budget: Budget, extra: DraftTree | None = None) -> DraftTree:
        """The tree after everything committed so far, nodes of `extra` included where they are worth it."""

    def commit(self, tokens: NDArray[np.int32]) -> None:
        """Append the target's verdict."""


class ExtendableDrafter(Protocol):
    """Makes such sessions."""

    def begin(self, request: DraftRequest) -> ExtendableSession:
        """Start drafting for one request."""


@dataclass(slots=True)
class Round:
    """One verify step of one request.

    Attributes:
        drafted: `uint8[N]`, source of every drafted node.
        accepted: `uint8[A]`, source of every accepted one, along the path.
        eagle_skipped: whether the EAGLE-3 draft was skipped because the batch was confident without it.
        draft_seconds: time in drafters, shared evenly among the batch.
        verify_seconds: from the start of the target's step to its verdict.
    """

    drafted: NDArray[np.uint8]
    accepted: NDArray[np.uint8]
    eagle_skipped: bool
    draft_seconds: float
    verify_seconds: float


@dataclass(slots=True)
class ActiveRequest:
    """What the worker remembers of a request.

    Attributes:
        binding: what the request asked of drafting.
        output: tokens generated so far, as far as verdicts are in.
        session: drafting state; None while nothing may be drafted.
        rounds: verify steps so far, in order.
        warnings: for the receipt.
        penalties: owner's state for sampling penalties (see `agentspec.engines.sglang.penalties`).
    """

    binding: RequestBinding
    output: list[int]
    session: ExtendableSession | None = None
    rounds: list[Round] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    penalties: Any = None

    def warn(self, message: str) -> None:
        """Put a sentence in the receipt, once."""
        if message not in self.warnings:
            self.warnings.append(message)


class DraftBook:
    """The requests in flight. An entry lives as long as SGLang's own request object does.

    Args:
        drafter: makes sessions; None drafts nothing without a model (EAGLE-3 alone).
        follower: the repositories.
        vocabulary_size: of the target.
        codec: the target's tokenizer, where there is one.
    """

    def __init__(
        self,
        drafter: ExtendableDrafter | None,
        follower: SnapshotFollower,
        vocabulary_size: int,
        codec: TextCodec | None,
    ) -> None:
        self._drafter = drafter
        self._follower = follower
        self._vocabulary_size = vocabulary_size
        self._codec = codec
        self._active: WeakKeyDictionary[Any, ActiveRequest] = WeakKeyDictionary()

    def warm_up(self) -> None:
        """Let the drafter look at the vocabulary and load what it needs before the first request comes."""
        drafter, codec = self._drafter, self._codec
        if drafter is None or codec is None:
            return
        example = warm_up_request(codec, self._vocabulary_size)
        nobody = ActiveRequest(RequestBinding(), [])
        self.guarded(nobody, "drafting could not begin", lambda: drafter.begin(example))

    def find(self, request: Any) -> ActiveRequest | None:
        """What is known of a request; None before its first decode step."""
        return self._active.get(request)

    def follow(self, request: Any, length: int, root: int) -> ActiveRequest:
        """Bring a request's state to its present length.

        Args:
            request: SGLang's request object; under overlap scheduling its `output_ids` lag a round behind.
            length: committed tokens before the root.
            root: the last committed token.
        """
        active = self._active.get(request)
        generated = length + 1 - len(request.origin_input_ids)
        if active is None or len(active.output) != generated or active.output[-1] != root:
            active = self._restart(request, active, generated, root)
        return active

    def _restart(self, request: Any, known: ActiveRequest | None, generated: int, root: int) -> ActiveRequest:
        """Begin, or begin again after SGLang took tokens back (a grammar's end, a retraction)."""
        output = list(request.output_ids)[:generated]
        if len(output) == generated - 1:
            output.append(root)
        if known is None:
            binding = parse(request.sampling_params.custom_params, self._vocabulary_size)
            known = ActiveRequest(binding, output, warnings=list(binding.warnings))
        known.output, known.session, known.penalties = output, None, None
        self._active[request] = known
        if len(output) == generated and output[-1:] == [root]:
            self._begin(request, known)
        return known

    def _begin(self, request: Any, active: ActiveRequest) -> None:
        if self._drafter is None or not may_speculate(request, active.binding):
            return
        snapshot = None
        if active.binding.store is not None:
            snapshot, warnings = self._follower.snapshot(active.binding.store, active.binding.generation)
            for warning in warnings:
                active.warn(warning)
        prompt = np.array([*request.origin_input_ids, *active.output], np.int32)
        description = DraftRequest(
            prompt=prompt,
            repository=snapshot,
            edited_path=active.binding.edited_path,
            prediction=active.binding.prediction,
            codec=self._codec,
        )
        drafter = self._drafter
        active.session = self.guarded(active, "drafting could not begin", lambda: drafter.begin(description))

    def propose(self, active: ActiveRequest, budget: Budget, extra: DraftTree | None) -> DraftTree:
        """The tree of one request; empty when there is nothing worth verifying.

        Args:
            active: the request.
            budget: bounds of the tree.
            extra: EAGLE-3's tree.
        """
        session = active.session
        if budget.max_nodes < 1:
            return DraftTree.empty()
        if session is None:
            return DraftTree.empty() if extra is None else _within(extra, budget)
        tree: DraftTree | None = self.guarded(active, "drafting failed", lambda: session.propose(budget, extra))
        if tree is None:
            active.session = None
            return DraftTree.empty()
        if len(tree) and int(tree.tokens.max()) >= self._vocabulary_size:
            active.warn("a draft held tokens outside the target's vocabulary and was dropped")
            return DraftTree.empty()
        return tree

    def commit(self, active: ActiveRequest, tokens: Sequence[int]) -> None:
        """Append a verdict: accepted tokens and the bonus token."""
        active.output += tokens
        session = active.session
        if session is None:
            return
        verdict = np.array(tokens, np.int32)

        def commit() -> bool:
            session.commit(verdict)
            return True

        if not self.guarded(active, "drafting failed", commit):
            active.session = None

    @staticmethod
    def guarded(active: ActiveRequest, what: str, action: Callable[[], _T]) -> _T | None:
        """Run `action`; whatever it raises costs this request its drafts, not the server its life: then None."""
        try:
            return action()
        except Exception as error:
            logger.warning("agentspec: %s", what, exc_info=True)
            active.warn(f"{what}: {error}")
            return None


def may_speculate(request: Any, binding: RequestBinding) -> bool:
    """Whether drafts are allowed: not when switched off, and not with a processor that knows no tree paths."""
    return binding.speculation and request.custom_logit_processor is None


def _within(tree: DraftTree, budget: Budget) -> DraftTree:
    """The nodes of `tree` within a budget's node and depth bounds; parents are kept with their children."""
    if len(tree) <= budget.max_nodes and int(tree.depths().max(initial=0)) <= budget.max_depth:
        return tree
    keep = np.flatnonzero(tree.depths() <= budget.max_depth)[: budget.max_nodes]
    place = np.full(len(tree) + 1, -1, np.int32)
    place[keep] = np.arange(len(keep), dtype=np.int32)
    return DraftTree(tree.tokens[keep], place[tree.parents[keep]], tree.prob[keep], tree.source[keep])


def confidence(tree: DraftTree) -> float:
    """Estimated probability that at least one drafted token is accepted."""
    return float(min(1.0, tree.prob[tree.parents < 0].sum()))


def count_sources(sources: NDArray[np.uint8]) -> dict[str, int]:
    """Nodes by source name, lower case; sources without any are left out."""
    counts = np.bincount(sources, minlength=len(Source))
    return {source.name.lower(): int(counts[source]) for source in Source if counts[source]}
