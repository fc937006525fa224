"""The store of one repository's index: a folder of immutable files and the manifest that names the current ones."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from agentspec.errors import IndexStoreError, TokenizerMismatchError
from agentspec.index.catalog import Catalog
from agentspec.index.manifest import MANIFEST_NAME, Manifest
from agentspec.index.segment import Segment
from agentspec.index.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_OPEN_ATTEMPTS = 10
"""A generation may be replaced, and its files removed, while it is being opened: then the next one is tried."""

_Signature = tuple[int, int, int]


class IndexStore:
    """Reads the generations that are published in a folder. Thread-safe.

    Args:
        directory: the folder; it need not exist yet.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._mutex = threading.Lock()
        self._signature: _Signature | None = None
        self._snapshot: Snapshot | None = None
        self._segments: Mapping[str, Segment] = {}

    @property
    def manifest_file(self) -> Path:
        """The file whose replacement publishes a generation."""
        return self.directory / MANIFEST_NAME

    def manifest(self) -> Manifest:
        """The manifest of the current generation.

        Raises:
            IndexStoreError: nothing was published yet, or the manifest is damaged.
        """
        return Manifest.read(self.manifest_file)

    def current(self, fingerprint: str | None = None) -> Snapshot:
        """The current generation. Costs one `stat` while nothing new is published; then only new segments are opened.

        Args:
            fingerprint: of the tokenizer whose tokens the caller will look up; None: any.

        Raises:
            TokenizerMismatchError: the index was built with another tokenizer.
            IndexStoreError: nothing was published yet, or a file is missing or damaged.
        """
        with self._mutex:
            signature = self._read_signature()
            if self._snapshot is None or signature != self._signature:
                self._follow()
                self._signature = signature
            snapshot = self._snapshot
        assert snapshot is not None
        if fingerprint is not None and fingerprint != snapshot.fingerprint:
            raise TokenizerMismatchError(
                f"the index in {self.directory} was built with the tokenizer {self.manifest().tokenizer.name} "
                "and does not fit the model's; run agentspec index with that model"
            )
        return snapshot

    def verify(self) -> list[str]:
        """Read every byte of the current generation and compare it with what was written.

        Returns:
            One sentence for each file that is damaged; empty when all is well.

        Raises:
            IndexStoreError: nothing was published yet, or the manifest is damaged.
        """
        problems = []
        for name in sorted(self.manifest().file_names()):
            try:
                with (self.directory / name).open("rb") as file:
                    digest = hashlib.file_digest(file, _new_digest).hexdigest()
            except OSError as error:
                problems.append(f"{name} cannot be read: {error.strerror}")
                continue
            if digest != Path(name).stem:
                problems.append(f"{name} does not hold what was written")
        return problems

    def _read_signature(self) -> _Signature | None:
        try:
            status = self.manifest_file.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _follow(self) -> None:
        for attempt in range(_OPEN_ATTEMPTS):
            manifest = self.manifest()
            try:
                segments = {
                    record.file: self._segments.get(record.file) or Segment.open(str(self.directory / record.file))
                    for record in manifest.segments
                }
                catalog = Catalog(self.directory / manifest.catalog)
                break
            except IndexStoreError:
                replaced = self.manifest().generation != manifest.generation
                if not replaced or attempt == _OPEN_ATTEMPTS - 1:
                    raise
        self._segments = segments
        self._snapshot = Snapshot(
            manifest.generation, manifest.tokenizer.fingerprint, tuple(segments.values()), catalog
        )


def content_name(parts: Iterable[bytes | memoryview], suffix: str) -> str:
    """The name of an immutable file: a hash of its content, by which it is verified, and `suffix`."""
    digest = _new_digest()
    for part in parts:
        digest.update(part)
    return digest.hexdigest() + suffix


def _new_digest() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=16)


def store_directory(index_directory: Path, repository: Path, fingerprint: str) -> Path:
    """The folder of the index of `repository` for the tokenizer with this fingerprint."""
    return _repository_directory(index_directory, repository) / fingerprint[:16]


def find_store(index_directory: Path, repository: Path, fingerprint: str) -> IndexStore:
    """The store that holds an index of `repository` for this tokenizer.

    Args:
        index_directory: where all stores live.
        repository: the repository's folder.
        fingerprint: of the tokenizer.

    Raises:
        TokenizerMismatchError: there are indexes of it, all made with other tokenizers.
        IndexStoreError: there is no index of it.
    """
    store = IndexStore(store_directory(index_directory, repository, fingerprint))
    if store.manifest_file.exists():
        return store
    others = [other.manifest().tokenizer.name for other in list_stores(index_directory, repository)]
    if others:
        raise TokenizerMismatchError(
            f"{repository} is indexed with the tokenizer of {', '.join(others)} only, which does not fit this model; "
            "run agentspec index with this model"
        )
    raise IndexStoreError(f"{repository} is not indexed; run: agentspec index {repository}")


def list_stores(index_directory: Path, repository: Path | None = None) -> list[IndexStore]:
    """All stores with something published, of one repository or of all, by folder name."""
    within = index_directory if repository is None else _repository_directory(index_directory, repository)
    pattern = f"*/*/{MANIFEST_NAME}" if repository is None else f"*/{MANIFEST_NAME}"
    return [IndexStore(file.parent) for file in sorted(within.glob(pattern))]


def _repository_directory(index_directory: Path, repository: Path) -> Path:
    resolved = repository.resolve()
    digest = hashlib.blake2b(str(resolved).encode(errors="surrogateescape"), digest_size=8).hexdigest()
    return index_directory / f"{resolved.name or 'root'}-{digest}"
