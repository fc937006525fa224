"""Publishing a new generation of a store."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from agentspec.errors import IndexStoreError
from agentspec.index.catalog import CatalogRow, encode_catalog
from agentspec.index.durable import sync_directory, write_file
from agentspec.index.manifest import Manifest, SegmentRecord
from agentspec.index.merge import plan_merge, read_documents
from agentspec.index.segment import IndexedDocument, Segment, document_table, encode_segment
from agentspec.index.store import IndexStore, content_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from agentspec.index.manifest import TokenizerIdentity
    from agentspec.index.snapshot import Snapshot

LOCK_NAME = "lock"
IGNORE_NAME = ".gitignore"
"""Keeps an index that lies inside a repository out of git and of itself."""

SEGMENT_SUFFIX = ".segment"
CATALOG_SUFFIX = ".catalog"


class _Place(NamedTuple):
    file: str
    document: int


class StoreWriter:
    """The one process that may publish into a store; made by `open_writer`.

    Args:
        store: the store to publish into.
        tokenizer: what makes the tokens; documents of another tokenizer are not reused.
        marks: version of the syntax marks; documents with others are not reused.
        reuse: False builds from nothing.
    """

    manifest: Manifest | None
    """The current generation, or None when there is none that can be read."""

    damage: str | None
    """Why the current generation cannot be built upon, if it cannot; the next one is then built from nothing."""

    def __init__(self, store: IndexStore, tokenizer: TokenizerIdentity, marks: str, reuse: bool = True) -> None:
        self._store = store
        self._tokenizer = tokenizer
        self._marks = marks
        self._reuse = reuse
        self._segments: dict[str, Segment] = {}
        self._places: dict[bytes, _Place] = {}
        self._snapshot: Snapshot | None = None
        self.manifest: Manifest | None = None
        self.damage: str | None = None
        try:
            self._read_current()
        except IndexStoreError as error:
            self._segments, self._places, self._snapshot = {}, {}, None
            if store.manifest_file.exists():
                self.damage = str(error)

    def knows(self, blob: bytes) -> bool:
        """Whether a document with this blob id need not be given to `publish` again."""
        return blob in self._places

    def is_outdated(self, files: Mapping[bytes, bytes]) -> bool:
        """Whether the current generation, if there is one to build upon, does not consist of exactly `files`.

        Args:
            files: blob id by path.
        """
        return self._snapshot is None or self._snapshot.blobs() != files

    def publish(
        self,
        repository: Path,
        files: Mapping[bytes, bytes],
        new: Sequence[IndexedDocument],
        skipped: Mapping[str, int],
    ) -> Manifest:
        """Publish a generation that consists of exactly `files`, and remove what it no longer needs.

        A crash at any instant leaves the previous generation or this one.

        Args:
            repository: the indexed folder.
            files: blob id by path; each is known or among `new`.
            new: documents that are not known yet.
            skipped: number of files left out, by reason.

        Raises:
            IndexStoreError: it cannot be written, for lack of space for example; nothing has changed then.
        """
        live = set(files.values())
        fresh = {document.blob: document for document in new if document.blob in live}
        with _clear_errors(self._store.directory):
            self._store.directory.mkdir(parents=True, exist_ok=True)
            self._merge(live, list(fresh.values()))
            records = [self._record(name, live) for name in self._segments]
            numbers = {record.file: number for number, record in enumerate(records)}
            catalog = [
                encode_catalog(
                    [
                        CatalogRow(path, numbers[self._places[blob].file], self._places[blob].document)
                        for path, blob in files.items()
                    ]
                )
            ]
            catalog_name = content_name(catalog, CATALOG_SUFFIX)
            write_file(self._store.directory / catalog_name, catalog)
            sync_directory(self._store.directory)
            self.manifest = Manifest(
                generation=self.manifest.generation + 1 if self.manifest else 1,
                repository=str(repository),
                tokenizer=self._tokenizer,
                marks=self._marks,
                segments=tuple(records),
                catalog=catalog_name,
                catalog_bytes=len(catalog[0]),
                files=len(files),
                skipped=dict(skipped),
                created=time.time(),
            )
            write_file(self._store.manifest_file, [self.manifest.encode()])
            sync_directory(self._store.directory)
        self._collect_garbage(self.manifest)
        return self.manifest

    def _read_current(self) -> None:
        manifest = self._store.manifest()
        self.manifest = manifest
        fits = manifest.tokenizer.fingerprint == self._tokenizer.fingerprint and manifest.marks == self._marks
        if not (fits and self._reuse):
            return
        self._snapshot = self._store.current()
        for record, segment in zip(manifest.segments, self._snapshot.segments, strict=True):
            self._adopt(record.file, segment)

    def _adopt(self, name: str, segment: Segment) -> None:
        self._segments[name] = segment
        for number, blob in enumerate(document_table(segment)["blob"].tolist()):
            self._places[blob] = _Place(name, number)

    def _merge(self, live: set[bytes], fresh: list[IndexedDocument]) -> None:
        """Bring `fresh` into segments, and the segments into shape."""
        names = list(self._segments)
        records = [self._record(name, live) for name in names]
        chosen = plan_merge(
            [(record.tokens, record.live_tokens) for record in records],
            sum(len(document.tokens) for document in fresh),
        )
        documents = fresh
        for number in sorted(chosen):
            segment = self._segments.pop(names[number])
            alive = [
                place.document for blob, place in self._places.items() if place.file == names[number] and blob in live
            ]
            documents = read_documents(segment, sorted(alive)) + documents
            if segment.damaged:
                raise IndexStoreError(f"{segment.path} was damaged while it was read; run agentspec index again")
        self._places = {blob: place for blob, place in self._places.items() if place.file in self._segments}
        if documents:
            parts = encode_segment(documents, self._tokenizer.vocabulary_size)
            name = content_name(parts, SEGMENT_SUFFIX)
            write_file(self._store.directory / name, parts)
            self._adopt(name, Segment.open(str(self._store.directory / name)))

    def _record(self, name: str, live: set[bytes]) -> SegmentRecord:
        segment = self._segments[name]
        table = document_table(segment)
        lengths = table["length"].tolist()
        return SegmentRecord(
            file=name,
            tokens=sum(lengths),
            live_tokens=sum(
                length
                for blob, length in zip(table["blob"].tolist(), lengths, strict=True)
                if blob in live and self._places[blob].file == name
            ),
            file_bytes=segment.file_size,
        )

    def _collect_garbage(self, manifest: Manifest) -> None:
        wanted = {*manifest.file_names(), LOCK_NAME, self._store.manifest_file.name}
        for file in self._store.directory.iterdir():
            if file.name not in wanted and file.suffix in (SEGMENT_SUFFIX, CATALOG_SUFFIX, ".tmp"):
                with suppress(OSError):  # what cannot be removed now is removed by the next writer
                    file.unlink()


@contextmanager
def open_writer(
    store: IndexStore, tokenizer: TokenizerIdentity, marks: str, reuse: bool = True
) -> Iterator[StoreWriter]:
    """Lock a store for writing; see `StoreWriter` for the arguments.

    Raises:
        IndexStoreError: another process is writing to it, or its folder cannot be made.
    """
    with _clear_errors(store.directory):
        store.directory.mkdir(parents=True, exist_ok=True)
        (store.directory / IGNORE_NAME).write_text("*\n")
        descriptor = os.open(store.directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise IndexStoreError(
                f"another agentspec index is writing to {store.directory}; wait until it is done"
            ) from error
        yield StoreWriter(store, tokenizer, marks, reuse)
    finally:
        os.close(descriptor)


@contextmanager
def _clear_errors(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise IndexStoreError(f"cannot write to the index folder {directory}: {error.strerror}") from error
