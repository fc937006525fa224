"""Which tokens go through the target next, and what becomes of its answer.

The scheduler is synchronous and belongs to one thread. Each `step` is one forward pass over everything that runs: the
verify rows of every decoding choice, and a bounded number of prompt tokens, so that a long prompt does not hold up
the others. It returns events; getting them to the callers is the engine's business.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
import torch

from agentspec.drafters.base import Budget, StreamDrafter
from agentspec.drafters.tree import ROOT
from agentspec.engines.local.events import Failure, Progress
from agentspec.engines.local.model import SequenceInput
from agentspec.engines.local.prompts import Prompts
from agentspec.engines.local.request import Phase
from agentspec.errors import AgentspecError, EngineError
from agentspec.kernels.acceptance import walk
from agentspec.kernels.tree_mask import accepted_rows, verify_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentspec.drafters.base import Drafter
    from agentspec.engines.local.cache_store import CacheStore
    from agentspec.engines.local.events import Event
    from agentspec.engines.local.limits import Limits
    from agentspec.engines.local.model import TargetModel
    from agentspec.engines.local.request import Choice, Generation
    from agentspec.engines.local.speculation import StepClock
    from agentspec.kernels.sampling import Draw

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Work:
    """The part of one sequence in a forward pass: a prompt chunk, or the verify rows of a choice."""

    generation: Generation
    choice: Choice
    inputs: SequenceInput

    @property
    def prefill(self) -> bool:
        return self.inputs.logit_rows is not None

    @property
    def logit_count(self) -> int:
        rows = self.inputs.logit_rows
        return len(self.inputs.tokens) if rows is None else len(rows)


class Scheduler:
    """Runs generations on one target.

    Args:
        model: the target.
        caches: memory for its keys and values.
        drafter: proposes draft trees for generations that want them.
        clock: what steps cost.
        limits: what may run at once.
    """

    def __init__(
        self, model: TargetModel, caches: CacheStore, drafter: Drafter, clock: StepClock, limits: Limits
    ) -> None:
        self._model = model
        self._caches = caches
        self._drafter = drafter
        self._capture = drafter.capture if isinstance(drafter, StreamDrafter) else ()
        self._clock = clock
        self._limits = limits
        self._prompts = Prompts(caches, clock)
        self._waiting: deque[Generation] = deque()
        self._running: list[Generation] = []
        self._memory_full = False
        self._events: list[Event] = []

    @property
    def running(self) -> int:
        """Requests admitted."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests queued."""
        return len(self._waiting)

    def submit(self, generation: Generation) -> None:
        """Queue a generation whose caches fit (`CacheStore.fits`)."""
        self._waiting.append(generation)

    def abort(self, generation: Generation) -> list[Event]:
        """End a generation; its unfinished choices close with finish reason "abort". Does nothing when it is over."""
        if generation.phase is not Phase.DONE:
            for choice in generation.choices:
                if choice.running:
                    choice.abort()
                    self._emit(generation, choice)
            self._close(generation)
        return self._take_events()

    def abort_all(self) -> list[Event]:
        """End everything as `abort` does and forget all caches."""
        events = [event for generation in [*self._running, *self._waiting] for event in self.abort(generation)]
        self._caches.clear()
        return events

    def fail_all(self, error: AgentspecError) -> list[Event]:
        """End everything with an error and forget all caches."""
        for generation in [*self._running, *self._waiting]:
            self._fail(generation, error)
        self._caches.clear()
        return self._take_events()

    def step(self) -> list[Event]:
        """One forward pass, and what follows from it."""
        self._admit()
        work = self._verify_work()
        work += [
            _Work(generation, generation.choices[0], inputs)
            for generation, inputs in self._prompts.chunks(self._running, decoding=bool(work))
        ]
        if work:
            self._run(work)
        return self._take_events()

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._limits.max_running and not self._memory_full:
            generation = self._waiting[0]
            caches = self._caches.reserve(
                generation.prompt,
                [self._limits.slots(len(generation.prompt), choice.max_new) for choice in generation.choices],
                [running.text(running.choices[0]) for running in self._running],
            )
            if caches is None and not self._running:
                self._fail(generation, EngineError("there is no key/value memory though nothing else is running"))
                continue
            if caches is None:
                # First come, first served: what is behind it waits too, until something ends.
                self._memory_full = True
                return
            self._waiting.popleft()
            self._running.append(generation)
            generation.start(caches)

    def _verify_work(self) -> list[_Work]:
        decoding = [
            (generation, choice)
            for generation in self._running
            if generation.phase is Phase.DECODE
            for choice in generation.choices
            if choice.running
        ]
        return [
            _Work(generation, choice, self._verify_inputs(choice, len(decoding))) for generation, choice in decoding
        ]

    def _verify_inputs(self, choice: Choice, batch: int) -> SequenceInput:
        assert choice.cache is not None
        drafting = choice.drafting
        depth = min(self._limits.max_depth, choice.remaining - 1)
        if depth >= 1 and drafting.wants_draft():
            curve = self._clock.verify_curve(batch, choice.cache.length, self._limits.max_nodes)
            drafting.propose(Budget(self._limits.max_nodes, depth, self._limits.min_path_prob, curve))
        else:
            drafting.skip()
        rows = verify_rows(drafting.tree, choice.generated[-1], choice.cache.length)
        return SequenceInput(choice.cache, rows.tokens, rows.positions, rows.mask)

    def _run(self, work: Sequence[_Work]) -> None:
        started = time.perf_counter()
        try:
            logits, streams_of = self._forward([part.inputs for part in work])
            self._model.synchronise()
        except Exception as error:
            self._isolate(work, error)
            return
        seconds = time.perf_counter() - started
        self._learn_costs(work, seconds)
        rows_of = torch.split(logits, [part.logit_count for part in work])
        for part, rows, streams in zip(work, rows_of, streams_of, strict=True):
            if part.generation.phase is Phase.DONE:
                continue
            try:
                self._absorb(part, rows, streams, seconds)
            except Exception as error:
                _log.warning("request failed", request=part.generation.id, error=repr(error))
                self._fail(part.generation, _as_agentspec_error(error))

    def _forward(self, inputs: Sequence[SequenceInput]) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        """Logits of all wanted rows, and the captured streams of each sequence's tokens where the drafter reads any."""
        if not self._capture:
            return self._model.forward(inputs), [torch.empty(0)] * len(inputs)
        logits, hidden = self._model.forward_with_hidden(inputs, self._capture)
        return logits, torch.split(hidden, [len(one.tokens) for one in inputs])

    def _isolate(self, work: Sequence[_Work], error: Exception) -> None:
        """A pass failed: find the sequence at fault by running each alone. Nothing has been committed yet."""
        _log.warning("forward pass failed", sequences=len(work), error=repr(error))
        if len(work) == 1:
            self._fail(work[0].generation, _as_agentspec_error(error))
            return
        for part in work:
            if part.generation.phase is not Phase.DONE:
                self._run([part])

    def _learn_costs(self, work: Sequence[_Work], seconds: float) -> None:
        if any(part.prefill for part in work):
            return
        batch = len(work)
        context = sum(part.inputs.cache.length for part in work) // batch
        drafted = [len(part.choice.drafting.tree) for part in work]
        if not any(drafted):
            self._clock.observe_plain(batch, context, seconds)
            return
        plain_seconds = self._clock.plain_seconds(batch, context)
        for part, nodes in zip(work, drafted, strict=True):
            alone = seconds * self._clock.share(batch, nodes, sum(drafted), context)
            part.choice.drafting.step_cost(alone, plain_seconds)

    def _absorb(self, part: _Work, logits: torch.Tensor, streams: torch.Tensor, seconds: float) -> None:
        """Take in the target's answer for one sequence."""
        generation = part.generation
        if part.prefill:
            if self._capture:
                generation.prompt_streams.append((part.inputs.cache.length, streams))
            self._absorb_prompt(generation, part.inputs, logits, seconds)
        else:
            position = part.inputs.cache.length
            kept = self._absorb_verdict(generation, part.choice, logits, seconds)
            if self._capture:
                part.choice.drafting.read(position, streams[kept])
        if not any(choice.running for choice in generation.choices):
            self._close(generation)

    def _absorb_prompt(
        self, generation: Generation, inputs: SequenceInput, logits: torch.Tensor, seconds: float
    ) -> None:
        generation.prefill_seconds += seconds
        cache = inputs.cache
        cache.compact(cache.length, torch.arange(len(inputs.tokens)))
        if len(logits) == 0:
            return
        generation.phase = Phase.DECODE
        for choice in generation.choices:
            assert choice.cache is not None
            if choice.cache is not cache:
                choice.cache.copy_prefix(cache, cache.length)
            if generation.draft is not None:
                choice.drafting.begin(self._drafter, generation.draft)
                for start, streams in generation.prompt_streams:
                    choice.drafting.read(start, streams)
            choice.accept(choice.sampler.draw(logits[0].cpu(), len(generation.prompt)))
            self._conclude(generation, choice, choice.generated)
        generation.prompt_streams = []

    def _absorb_verdict(
        self, generation: Generation, choice: Choice, logits: torch.Tensor, seconds: float
    ) -> torch.Tensor:
        """Emit what a verify step accepted; see `accepted_rows`."""
        started = time.perf_counter()
        drawn: list[Draw] = []

        def draw(node: int) -> int:
            position = len(generation.prompt) + len(choice.generated)
            # Only rows on the path leave the device.
            drawn.append(choice.sampler.draw(logits[node - ROOT].cpu(), position))
            return drawn[-1].token

        tree = choice.drafting.tree
        verdict = walk(tree, draw, lambda _: choice.accept(drawn[-1]))
        assert choice.cache is not None
        kept = accepted_rows(verdict.path)
        choice.cache.compact(choice.cache.length, kept)
        choice.counters.count(tree, verdict.path)
        choice.counters.verify_seconds += seconds + time.perf_counter() - started
        self._conclude(generation, choice, verdict.tokens)
        return kept

    def _conclude(self, generation: Generation, choice: Choice, tokens: Sequence[int]) -> None:
        """After tokens were emitted: tell the drafter and the caller."""
        if choice.running:
            choice.drafting.commit(tokens)
        self._emit(generation, choice)

    def _emit(self, generation: Generation, choice: Choice) -> None:
        receipt = None if choice.running else generation.receipt(choice)
        self._events += [Progress(generation, chunk) for chunk in choice.take_chunks(receipt)]

    def _fail(self, generation: Generation, error: AgentspecError) -> None:
        self._close(generation, retain=False)
        self._events.append(Failure(generation, error))

    def _close(self, generation: Generation, *, retain: bool = True) -> None:
        """Take a generation out; its first cache is kept for later prompts, the others are given back."""
        if generation.phase is Phase.WAITING:
            self._waiting.remove(generation)
        else:
            self._running.remove(generation)
        self._memory_full = False
        for choice in generation.choices:
            if choice.cache is None:
                continue
            if retain and choice.index == 0 and choice.cache.length > 0:
                self._caches.retain(generation.text(choice))
            else:
                self._caches.release(choice.cache)
        generation.finish()

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events


def _as_agentspec_error(error: Exception) -> AgentspecError:
    return error if isinstance(error, AgentspecError) else EngineError(f"decoding failed: {error!r}")
