"""An indexer that takes as long as it is told, and fails when it is told."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from agentspec.errors import IndexStoreError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FILES = 3


class ScriptedIndexer:
    """Counts builds and remembers which folders it was given.

    Attributes:
        built: roots whose builds completed.
        go: builds wait for this event before each file.
        error: raised by builds.
    """

    def __init__(self) -> None:
        self.built: list[Path] = []
        self.go = threading.Event()
        self.go.set()
        self.error: Exception | None = None

    def build(self, root: Path, progress: Callable[[int, int], None]) -> None:
        for done in range(FILES):
            progress(done, FILES)
            self.go.wait(5)
        if self.error is not None:
            raise self.error
        progress(FILES, FILES)
        self.built.append(root)

    def snapshot(self, root: Path, fingerprint: str) -> object:
        if root not in self.built:
            raise IndexStoreError(f"no index of {root}")
        return (root, fingerprint)
