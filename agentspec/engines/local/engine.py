"""The embedded engine: one target in this process, behind the contract of `agentspec.engines.base`."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agentspec.drafters.fused_drafter import FusedDrafter
from agentspec.drafters.tree_drafter import TreeDrafter
from agentspec.drafters.warm_up import warm_up_request
from agentspec.engines.base import EngineStats, ModelInfo, served_model
from agentspec.engines.local.cache_store import CacheStore
from agentspec.engines.local.drafting import ChoiceDrafting
from agentspec.engines.local.events import Failure
from agentspec.engines.local.grammar import Grammars
from agentspec.engines.local.kv_cache import KVPool
from agentspec.engines.local.limits import Limits
from agentspec.engines.local.preparation import Preparation
from agentspec.engines.local.scheduler import Scheduler
from agentspec.engines.local.speculation import StepClock
from agentspec.engines.local.target import kv_slots, load_target
from agentspec.engines.local.worker import Worker
from agentspec.errors import AgentspecError, EngineUnavailableError, InvalidRequestError, OverloadedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from agentspec.config import Settings
    from agentspec.drafters.base import Drafter
    from agentspec.engines.base import ChatPrompt, Chunk, GenerationRequest
    from agentspec.engines.local.events import Event
    from agentspec.engines.local.preparation import ProcessorFactory, RepositorySource
    from agentspec.engines.local.request import Generation
    from agentspec.engines.local.target import Target

_RETRY_BOUNDS = (1.0, 30.0)
"""Seconds that a refused caller is told to wait, at least and at most."""


@dataclass(slots=True, eq=False)
class _Stream:
    """The caller's end of one generation; used in the event loop only."""

    items: asyncio.Queue[Chunk | AgentspecError] = field(default_factory=asyncio.Queue)
    generation: Generation | None = None
    abort_wanted: bool = False


@dataclass(frozen=True, slots=True)
class _Loaded:
    target: Target
    preparation: Preparation
    caches: CacheStore
    scheduler: Scheduler


class LocalEngine:
    """Serves a model from this process.

    Args:
        settings: all of them; `engine` and `drafting` matter here.
        repositories: where the indexes that requests name come from.
        drafter: proposes draft trees; None: `TreeDrafter`, with the target's EAGLE-3 head where it has one.
            `engine.speculation` switches drafting off.
        processors: further logits processors of a request (a grammar, say), called once per choice.
        load: loads the target.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        repositories: RepositorySource | None = None,
        drafter: Drafter | None = None,
        processors: ProcessorFactory | None = None,
        load: Callable[[Settings], Target] = load_target,
    ) -> None:
        self._settings = settings
        self._repositories = repositories
        self._drafter = drafter
        self._processors = processors
        self._load = load
        self._loaded: _Loaded | None = None
        self._worker: Worker | None = None
        self._model: ModelInfo | None = None
        self._streams: dict[str, _Stream] = {}
        self._mean_seconds = 1.0

    @property
    def model(self) -> ModelInfo:
        """The served model.

        Raises:
            EngineUnavailableError: before `start`.
        """
        return served_model(self._model)

    async def start(self) -> None:
        """Load the model in the engine's thread and become ready.

        Raises:
            ModelError: the model cannot be loaded.
        """
        loop = asyncio.get_running_loop()
        worker = Worker(
            self._build,
            deliver=lambda events: _call_in(loop, lambda: self._dispatch(events)),
            died=lambda: _call_in(loop, lambda: self._refuse_all("the engine has failed; restart the server")),
        )
        await asyncio.wrap_future(worker.built)
        self._worker = worker

    def _build(self) -> Scheduler:
        engine, drafting = self._settings.engine, self._settings.drafting
        target = self._load(self._settings)
        limits = Limits(engine.max_running, drafting.max_nodes, drafting.max_depth, drafting.min_path_prob)
        model = target.model
        useful = (engine.max_running + engine.retained_prefixes) * limits.slots(model.context_length, 0)
        pool = KVPool(model.layout, kv_slots(model.layout, engine.kv_tokens, useful))
        caches = CacheStore(pool, engine.retained_prefixes)
        # No request may be promised a context that its caches could never have.
        context_length = min(model.context_length, caches.largest - limits.slots(0, 0))
        preparation = Preparation(
            tokenizer=target.tokenizer,
            vocab_size=model.vocab_size,
            context_length=context_length,
            end_tokens=model.eos_token_ids,
            limits=limits,
            caches=caches,
            speculation=engine.speculation,
            grammars=Grammars(target.tokenizer.wrapped, model.vocab_size, model.eos_token_ids),
            repositories=self._repositories,
            processors=self._processors,
        )
        own = TreeDrafter() if target.head is None else FusedDrafter(TreeDrafter(), target.head)
        drafter = self._drafter or own
        if preparation.speculation:
            _warm_up(drafter, target)
        scheduler = Scheduler(model, caches, drafter, StepClock(target.cost), limits)
        self._loaded = _Loaded(target, preparation, caches, scheduler)
        self._model = ModelInfo(target.name, context_length, int(time.time()))
        return scheduler

    async def stop(self) -> None:
        """Abort what runs and release everything. Idempotent."""
        worker, self._worker = self._worker, None
        if worker is not None:
            await asyncio.to_thread(worker.stop)
            # Only requests that were still being prepared are left: the others have their last chunks.
            self._refuse_all("the engine was stopped")
        self._loaded = None

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """Stream the choices of one request, interleaved; see `agentspec.engines.base.Engine.generate`."""
        loaded, worker = self._serving()
        self._check_admission(request)
        started = time.perf_counter()
        stream = _Stream()
        self._streams[request.id] = stream
        unfinished = request.n
        try:
            stream.generation = await asyncio.to_thread(loaded.preparation.prepare, request)
            worker.submit(stream.generation)
            if stream.abort_wanted:
                worker.abort(stream.generation)
            while unfinished:
                item = await stream.items.get()
                if isinstance(item, AgentspecError):
                    unfinished = 0
                    raise item
                unfinished -= item.finish_reason is not None
                yield item
            self._mean_seconds += 0.2 * (time.perf_counter() - started - self._mean_seconds)
        finally:
            del self._streams[request.id]
            if unfinished and stream.generation is not None:
                worker.abort(stream.generation)

    async def abort(self, request_id: str) -> None:
        """End a request; its stream closes with finish reason "abort". Unknown ids are ignored."""
        stream = self._streams.get(request_id)
        if stream is None:
            return
        stream.abort_wanted = True
        if stream.generation is not None and self._worker is not None:
            self._worker.abort(stream.generation)

    def stats(self) -> EngineStats:
        """Current state."""
        loaded, worker = self._loaded, self._worker
        if loaded is None or worker is None:
            return EngineStats(ready=False, running=0, waiting=0, kv_tokens_used=0, kv_tokens_total=0)
        running = worker.running
        return EngineStats(
            ready=worker.alive,
            running=running,
            waiting=max(0, len(self._streams) - running),
            kv_tokens_used=loaded.caches.used,
            kv_tokens_total=loaded.caches.total,
            progress=worker.passes,
        )

    async def tokenize(self, prompt: str | ChatPrompt) -> list[int]:
        """Token ids of a prompt as the target would see it."""
        loaded, _ = self._serving()
        return await asyncio.to_thread(loaded.target.tokenizer.prompt_tokens, prompt)

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """Text of token ids, special tokens included.

        Raises:
            InvalidRequestError: an id lies outside the vocabulary.
        """
        loaded, _ = self._serving()
        size = loaded.target.tokenizer.vocab_size
        for token in tokens:
            if not 0 <= token < size:
                raise InvalidRequestError(f"token {token} lies outside the vocabulary of {size}", "tokens")
        return loaded.target.tokenizer.decode(tokens)

    def _serving(self) -> tuple[_Loaded, Worker]:
        if self._loaded is None or self._worker is None or not self._worker.alive:
            raise EngineUnavailableError("the engine is not running; retry shortly")
        return self._loaded, self._worker

    def _check_admission(self, request: GenerationRequest) -> None:
        if request.id in self._streams:
            raise InvalidRequestError(f"a request with id {request.id} is running; ids must be unique", "id")
        engine = self._settings.engine
        if len(self._streams) >= engine.max_running + engine.max_waiting:
            low, high = _RETRY_BOUNDS
            ahead = len(self._streams) / engine.max_running
            raise OverloadedError(
                f"{len(self._streams)} requests are running or queued, as many as this server takes; retry later",
                retry_after=min(max(ahead * self._mean_seconds, low), high),
            )

    def _refuse_all(self, reason: str) -> None:
        """End every stream that has not ended: the worker is gone."""
        for stream in self._streams.values():
            stream.items.put_nowait(EngineUnavailableError(reason))

    def _dispatch(self, events: list[Event]) -> None:
        for event in events:
            stream = self._streams.get(event.generation.id)
            # The stream of a caller that has gone is gone too, and its id may already be used again.
            if stream is not None and stream.generation is event.generation:
                stream.items.put_nowait(event.error if isinstance(event, Failure) else event.chunk)


def _warm_up(drafter: Drafter, target: Target) -> None:
    """Let the drafter look at the vocabulary and load what it needs before the first request comes."""
    vocab_size = target.model.vocab_size
    ChoiceDrafting("warm-up", vocab_size).begin(drafter, warm_up_request(target.tokenizer, vocab_size))


def _call_in(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(function)
