"""Indexes as the worker sees them: newest generation at hand, never waited for.

A scheduler must not pause for a disk, so generations are followed in a thread of their own; a request takes the one
that is open at that moment and keeps it until it ends.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agentspec.errors import IndexStoreError
from agentspec.index.store import IndexStore

if TYPE_CHECKING:
    from pathlib import Path

    from agentspec.index.snapshot import Snapshot

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.25
"""How long a new generation may go unnoticed."""
IDLE_SECONDS = 600.0
"""After this long without a request, a repository's files are closed."""


@dataclass(slots=True)
class _Followed:
    store: IndexStore
    snapshot: Snapshot
    used: float = field(default_factory=time.monotonic)
    problem: str = ""


class SnapshotFollower:
    """Keeps the current generation of every repository in use. Thread-safe.

    Args:
        index_directory: where all stores live; nothing outside is ever opened.
        fingerprint: of the target's tokenizer; None: unknown, then no index fits.
    """

    def __init__(self, index_directory: Path, fingerprint: str | None) -> None:
        self._directory = index_directory
        self._fingerprint = fingerprint
        self._followed: dict[str, _Followed] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="agentspec-index", daemon=True)
        self._thread.start()

    def snapshot(self, store: str, generation: int | None = None) -> tuple[Snapshot | None, tuple[str, ...]]:
        """The newest open generation of a store, and warnings.

        The first request that names a store opens it (files are mapped, not read); later ones cost a lookup.

        Args:
            store: folder below the index directory.
            generation: the one that the caller saw last.
        """
        followed = self._followed.get(store)
        if followed is None:
            try:
                followed = self._open(store)
            except IndexStoreError as error:
                return None, (f"the repository's index is not used: {error}",)
        followed.used = time.monotonic()
        snapshot = followed.snapshot
        if generation is not None and snapshot.generation < generation:
            return snapshot, (f"drafting from generation {snapshot.generation} of the index, not {generation}",)
        return snapshot, ()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._thread.join()

    def _open(self, name: str) -> _Followed:
        if self._fingerprint is None:
            raise IndexStoreError("the target's tokenizer could not be identified")
        directory = self._directory / name
        if not directory.resolve().is_relative_to(self._directory.resolve()):
            raise IndexStoreError(f"{name} leads out of the index directory")
        store = IndexStore(directory)
        followed = _Followed(store, store.current(self._fingerprint))
        return self._followed.setdefault(name, followed)

    def _follow(self) -> None:
        while not self._stopped.wait(POLL_SECONDS):
            for name, followed in list(self._followed.items()):
                if time.monotonic() - followed.used > IDLE_SECONDS:
                    self._followed.pop(name, None)
                else:
                    self._refresh(name, followed)

    def _refresh(self, name: str, followed: _Followed) -> None:
        try:
            followed.snapshot = followed.store.current(self._fingerprint)
            followed.problem = ""
        except (IndexStoreError, OSError) as error:
            if str(error) != followed.problem:
                logger.warning("agentspec stays with an old generation of %s: %s", name, error)
                followed.problem = str(error)
