"""Indexes of registered repositories, built and opened in the index stores of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentspec.index.build import BuildOptions, build_index
from agentspec.index.store import find_store
from agentspec.index.tokenizer import IndexTokenizer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agentspec.config import IndexSettings
    from agentspec.index.snapshot import Snapshot
    from agentspec.index.store import IndexStore


class StoreIndexer:
    """The `Indexer` of a server: the same stores that `agentspec index` writes.

    Args:
        tokenizer: where the served model's tokenizer is: a model folder, a `tokenizer.json`, or a hub id.
        settings: where stores live and which files are left out.
    """

    def __init__(self, tokenizer: str, settings: IndexSettings) -> None:
        self._tokenizer = tokenizer
        self._settings = settings
        self._stores: dict[tuple[Path, str], IndexStore] = {}

    def build(self, root: Path, progress: Callable[[int, int], None]) -> None:
        """Bring the index of `root` up to date; see `Indexer.build`."""
        directory = self._settings.directory
        options = BuildOptions(directory, self._settings.max_file_bytes)
        build_index(
            root,
            IndexTokenizer(self._tokenizer, directory),
            options,
            lambda state: progress(state.files_done, state.files_total),
        )

    def snapshot(self, root: Path, fingerprint: str) -> Snapshot:
        """The published generation; see `Indexer.snapshot`. A store stays open, so following it is cheap."""
        store = self._stores.get((root, fingerprint))
        if store is None:
            store = find_store(self._settings.directory, root, fingerprint)
            self._stores[root, fingerprint] = store
        return store.current(fingerprint)
