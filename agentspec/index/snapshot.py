"""One published generation of a repository's index, as readers hold it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from agentspec.index.segment import DefinitionKind, definition_table, document_table, identifier_bits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from agentspec.index.catalog import Catalog
    from agentspec.index.segment import Segment

_BITS_PER_WORD = 64
_KINDS = frozenset(int(kind) for kind in DefinitionKind)


@dataclass(frozen=True, slots=True)
class Document:
    """A file of the repository.

    Attributes:
        path: relative to the repository, `/` between its parts; bytes that are not UTF-8 are surrogate-escaped.
        segment: number of its segment in `Snapshot.segments`.
        number: its number in that segment's document table.
        start: position of its first token in the segment.
        length: number of its tokens.
    """

    path: str
    segment: int
    number: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Definition:
    """A function, class or the like, found by its syntax.

    Attributes:
        name: as written.
        kind: what it defines.
        document: the file that holds it.
        start: its first token, counted from the start of the document.
        end: the token behind its last one.
    """

    name: str
    kind: DefinitionKind
    document: Document
    start: int
    end: int

    @property
    def path(self) -> str:
        """Path of the file that holds it."""
        return self.document.path


class Snapshot:
    """An immutable generation. Its segments stay mapped as long as it lives, whatever is published meanwhile.

    Segments may hold documents that this generation no longer names; their positions must never be drafted. `live`
    says which documents are alive. Thread-safe.

    Args:
        generation: number of this generation, ascending.
        fingerprint: of the tokenizer that made the tokens.
        segments: the segments of this generation.
        catalog: its paths.
    """

    live: tuple[NDArray[np.uint64], ...]
    """Per segment `uint64[ceil(D / 64)]`: bit `d % 64` of word `d // 64` is set when document d is alive."""

    def __init__(self, generation: int, fingerprint: str, segments: Sequence[Segment], catalog: Catalog) -> None:
        self.generation = generation
        self.fingerprint = fingerprint
        self.segments = tuple(segments)
        self._catalog = catalog
        self.live = tuple(self._live_bits(number, segment) for number, segment in enumerate(self.segments))

    def __len__(self) -> int:
        return len(self._catalog)

    def is_live(self, segment: int, document: int) -> bool:
        """Whether a document of a segment belongs to this generation."""
        words = self.live[segment]
        word, bit = divmod(document, _BITS_PER_WORD)
        return word < len(words) and bool(int(words[word]) >> bit & 1)

    def document(self, path: str) -> Document | None:
        """The file at `path`, or None when this generation has none there."""
        row = self._catalog.find(os.fsencode(path))
        return None if row is None else self._document(path, row)

    def documents(self) -> Iterator[Document]:
        """All files, by ascending path."""
        for row in range(len(self._catalog)):
            document = self._document(os.fsdecode(self._catalog.path(row)), row)
            if document is not None:
                yield document

    def blobs(self) -> dict[bytes, bytes]:
        """The git blob id of the content of every file, by path as bytes."""
        tables: list[list[bytes]] = [document_table(segment)["blob"].tolist() for segment in self.segments]
        places = zip(self._catalog.segments.tolist(), self._catalog.documents.tolist(), strict=True)
        return {
            path: tables[segment][document]
            for path, (segment, document) in zip(self._catalog.paths(), places, strict=True)
        }

    def tokens(self, document: Document) -> NDArray[np.int32]:
        """A copy `int32[L]` of a document's tokens; empty when its segment was damaged meanwhile."""
        segment = self.segments[document.segment]
        tokens = segment.tokens[document.start : document.start + document.length].copy()
        return tokens[:0] if segment.damaged else tokens

    def identifiers(self, document: Document) -> NDArray[np.bool_]:
        """`bool[L]`: which tokens of a document lie in identifiers; all False where its syntax was not parsed."""
        segment = self.segments[document.segment]
        bits = identifier_bits(segment, document.start, document.length)
        return bits & (not segment.damaged)

    def definitions(self, name: str) -> list[Definition]:
        """All definitions of `name`; one for each path where several files have the same content."""
        found: list[Definition] = []
        for number, segment in enumerate(self.segments):
            first, last = segment.definitions_named(name)
            for index in range(first, last):
                found += self._definition(number, index)
        return found

    def definitions_in(self, path: str) -> list[Definition]:
        """The definitions of one file, in the order in which they begin; empty when there is no such file."""
        document = self.document(path)
        if document is None:
            return []
        starts = definition_table(self.segments[document.segment])["start"].astype(np.int64) - document.start
        inside = np.flatnonzero((starts >= 0) & (starts < document.length))
        found = [
            definition
            for index in inside[np.argsort(starts[inside], kind="stable")].tolist()
            for definition in self._definition(document.segment, index)
        ]
        return [definition for definition in found if definition.path == path]

    def _definition(self, segment_number: int, index: int) -> list[Definition]:
        segment = self.segments[segment_number]
        name, start, length, kind = segment.definition(index)
        number = segment.document_at(start)
        if segment.damaged or kind not in _KINDS or not self.is_live(segment_number, number):
            return []
        found = []
        for path in self._catalog.paths_of(segment_number, number):
            document = self._place(path, segment_number, number)
            if document is not None:
                begin = start - document.start
                end = min(begin + length, document.length)
                found.append(Definition(name.decode(errors="replace"), DefinitionKind(kind), document, begin, end))
        return found

    def _document(self, path: str, row: int) -> Document | None:
        return self._place(path, int(self._catalog.segments[row]), int(self._catalog.documents[row]))

    def _place(self, path: str, segment_number: int, number: int) -> Document | None:
        if segment_number >= len(self.segments) or number >= self.segments[segment_number].document_count:
            return None
        segment = self.segments[segment_number]
        entry = document_table(segment)[number]
        start, length = int(entry["start"]), int(entry["length"])
        if segment.damaged or start + length > segment.size:
            return None
        return Document(path, segment_number, number, start, length)

    def _live_bits(self, number: int, segment: Segment) -> NDArray[np.uint64]:
        words = -(-segment.document_count // _BITS_PER_WORD)
        bits = np.zeros(words * _BITS_PER_WORD, np.uint8)
        documents = self._catalog.documents[self._catalog.segments == number]
        bits[documents[documents < segment.document_count]] = 1
        return np.packbits(bits, bitorder="little").view(np.uint64)
