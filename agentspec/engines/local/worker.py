"""The thread that owns the target and its scheduler."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

import structlog

from agentspec.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentspec.engines.local.events import Event
    from agentspec.engines.local.request import Generation
    from agentspec.engines.local.scheduler import Scheduler

_log = structlog.get_logger(__name__)


class Worker:
    """Runs a scheduler in a thread of its own, one pass after another while there is work.

    Args:
        build: makes the scheduler, in that thread.
        deliver: told, in that thread, what each pass brought.
        died: told, in that thread, that it ends though nobody stopped it; what runs will never be answered.

    Attributes:
        built: done when the scheduler is made; holds the error if it could not be.
        passes: forward passes so far.
    """

    def __init__(
        self, build: Callable[[], Scheduler], deliver: Callable[[list[Event]], None], died: Callable[[], None]
    ) -> None:
        self.built: Future[None] = Future()
        self.passes = 0
        self._build = build
        self._deliver = deliver
        self._died = died
        self._scheduler: Scheduler | None = None
        self._commands: queue.SimpleQueue[Callable[[Scheduler], list[Event]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="agentspec-target", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it serves."""
        return self._scheduler is not None and self._thread.is_alive()

    @property
    def running(self) -> int:
        """Requests admitted."""
        return 0 if self._scheduler is None else self._scheduler.running

    def submit(self, generation: Generation) -> None:
        """Queue a generation."""

        def command(scheduler: Scheduler) -> list[Event]:
            scheduler.submit(generation)
            return []

        self._commands.put(command)

    def abort(self, generation: Generation) -> None:
        """End a generation after the current pass."""
        self._commands.put(lambda scheduler: scheduler.abort(generation))

    def stop(self) -> None:
        """Abort everything after the current pass and end the thread; returns when it has ended."""
        self._commands.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            scheduler = self._build()
        except BaseException as error:
            self.built.set_exception(error)
            return
        self._scheduler = scheduler
        self.built.set_result(None)
        broken = False
        try:
            self._serve(scheduler)
        except Exception:
            _log.exception("the engine's thread ends: the scheduler could not be brought back to order")
            broken = True
        self._scheduler = None
        if broken:
            self._died()

    def _serve(self, scheduler: Scheduler) -> None:
        while self._obey(scheduler):
            try:
                events = scheduler.step()
            except Exception as error:
                _log.exception("scheduler failed; every running request is ended")
                events = scheduler.fail_all(EngineError(f"the engine failed: {error!r}"))
            self.passes += 1
            if events:
                self._deliver(events)

    def _obey(self, scheduler: Scheduler) -> bool:
        """Carry out what was asked, waiting for it when there is nothing else to do; False: stop."""
        while True:
            idle = not scheduler.running and not scheduler.waiting
            try:
                command = self._commands.get(block=idle)
            except queue.Empty:
                return True
            if command is None:
                self._deliver(scheduler.abort_all())
                return False
            events = command(scheduler)
            if events:
                self._deliver(events)
