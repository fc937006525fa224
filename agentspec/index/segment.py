"""Segments: immutable files of tokens with their context order; written here, read through `Segment`.

The layout is described in `native/segment.hpp`, which reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from agentspec.index._native import SECTION_ALIGNMENT, SEGMENT_VERSION, Segment, checksum, sort_contexts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = [
    "SEPARATOR",
    "DefinitionKind",
    "DefinitionMark",
    "IndexedDocument",
    "Segment",
    "definition_table",
    "document_table",
    "encode_segment",
    "identifier_bits",
    "write_segment",
]

SEPARATOR = -1
"""The token between documents; never part of a draft."""

BLOB_BYTES = 20
_MAGIC = b"agentseg"
_MAX_DEFINITION_TOKENS = 2**24 - 1

_HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("vocabulary_size", "<u4"),
        ("file_size", "<u8"),
        ("token_count", "<u8"),
        ("document_count", "<u8"),
        ("definition_count", "<u8"),
        ("name_bytes", "<u8"),
        ("checksum", "<u8"),
    ]
)
_DOCUMENT = np.dtype([("start", "<u4"), ("length", "<u4"), ("blob", "V20")])
_DEFINITION = np.dtype([("name", "<u4"), ("start", "<u4"), ("length_and_kind", "<u4")])


class DefinitionKind(IntEnum):
    """What a definition defines; stored in one byte."""

    FUNCTION = 1
    METHOD = 2
    CLASS = 3
    INTERFACE = 4
    STRUCT = 5
    ENUM = 6
    TYPE = 7
    MODULE = 8
    CONSTANT = 9
    MACRO = 10


@dataclass(frozen=True, slots=True)
class DefinitionMark:
    """A definition inside one document.

    Attributes:
        name: the defined name, as written.
        kind: what it defines.
        start: its first token, counted from the start of the document.
        end: the token behind its last one.
    """

    name: str
    kind: DefinitionKind
    start: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class IndexedDocument:
    """One file, ready for a segment.

    Attributes:
        blob: 20 bytes, names the file's content and language, see `agentspec.index.scan.document_id`.
        tokens: `int32[L]`, the whole file.
        identifiers: `bool[L]`, tokens inside identifier leaves of the syntax tree.
        definitions: definitions found in it, in any order.
    """

    blob: bytes
    tokens: NDArray[np.int32]
    identifiers: NDArray[np.bool_]
    definitions: tuple[DefinitionMark, ...] = ()


def encode_segment(documents: Sequence[IndexedDocument], vocabulary_size: int) -> list[bytes | memoryview]:
    """The bytes of a segment file that holds `documents` in this order, in parts to be written one after another.

    Args:
        documents: at least one.
        vocabulary_size: all tokens are below it.

    Raises:
        ValueError: a token is negative or not below `vocabulary_size`, or there are 2**32 - 1 tokens or more.
    """
    lengths = np.array([len(document.tokens) for document in documents], np.int64)
    starts = np.cumsum(lengths + 1) - lengths - 1
    size = int(lengths.sum()) + len(documents)
    tokens = np.full(size, SEPARATOR, np.int32)
    identifiers = np.zeros(size, np.bool_)
    for start, document in zip(starts.tolist(), documents, strict=True):
        _check_tokens(document.tokens, vocabulary_size)
        tokens[start : start + len(document.tokens)] = document.tokens
        identifiers[start : start + len(document.tokens)] = document.identifiers
    order = sort_contexts(tokens)

    table = np.zeros(len(documents), _DOCUMENT)
    table["start"] = starts
    table["length"] = lengths
    table["blob"] = np.frombuffer(b"".join(document.blob for document in documents), "V20")
    definitions, names = _encode_definitions(documents, starts.tolist())

    tables = b"".join(part for section in (table, definitions, names) for part in _aligned(section))
    bits = np.packbits(identifiers, bitorder="little")
    body = [part for section in (bits, tokens, order) for part in _aligned(section)]
    header = np.zeros(1, _HEADER)
    header["magic"] = _MAGIC
    header["version"] = SEGMENT_VERSION
    header["vocabulary_size"] = vocabulary_size
    header["file_size"] = header.nbytes + len(tables) + sum(len(part) for part in body)
    header["token_count"] = size
    header["document_count"] = len(documents)
    header["definition_count"] = len(definitions)
    header["name_bytes"] = len(names)
    seed = checksum(np.frombuffer(header.tobytes(), np.uint8), 0)
    header["checksum"] = checksum(np.frombuffer(tables, np.uint8), seed)
    return [header.tobytes(), tables, *body]


def write_segment(path: Path, documents: Sequence[IndexedDocument], vocabulary_size: int) -> Segment:
    """Write a segment file by itself, outside any store, and open it.

    Raises:
        ValueError: see `encode_segment`.
        OSError: the file cannot be written.
    """
    path.write_bytes(b"".join(encode_segment(documents, vocabulary_size)))
    return Segment.open(str(path))


def document_table(segment: Segment) -> NDArray[np.void]:
    """A view of a segment's documents `[D]` with the fields `start`, `length` and `blob`, by ascending start."""
    return segment.document_table.view(_DOCUMENT)


def definition_table(segment: Segment) -> NDArray[np.void]:
    """A view of a segment's definitions `[F]` with the fields `name`, `start` and `length_and_kind`, by name."""
    return segment.definition_table.view(_DEFINITION)


def identifier_bits(segment: Segment, start: int, length: int) -> NDArray[np.bool_]:
    """`bool[length]`: which of the tokens from position `start` on lie in identifiers."""
    first = start // 8
    bits = np.unpackbits(segment.identifiers[first : (start + length + 7) // 8], bitorder="little")
    return bits[start - 8 * first :][:length].astype(np.bool_)


def _check_tokens(tokens: NDArray[np.int32], vocabulary_size: int) -> None:
    if len(tokens) and not (int(tokens.min()) >= 0 and int(tokens.max()) < vocabulary_size):
        raise ValueError(f"a document holds tokens outside [0, {vocabulary_size}), the model's vocabulary")


def _encode_definitions(
    documents: Sequence[IndexedDocument], starts: Sequence[int]
) -> tuple[NDArray[np.void], NDArray[np.uint8]]:
    rows = sorted(
        (mark.name.encode(), start + mark.start, mark.end - mark.start, int(mark.kind))
        for start, document in zip(starts, documents, strict=True)
        for mark in document.definitions
        if "\0" not in mark.name
    )
    names = bytearray()
    offsets: dict[bytes, int] = {}
    table = np.zeros(len(rows), _DEFINITION)
    for number, (name, start, length, kind) in enumerate(rows):
        if name not in offsets:
            offsets[name] = len(names)
            names += name + b"\0"
        table[number] = (offsets[name], start, min(length, _MAX_DEFINITION_TOKENS) << 8 | kind)
    return table, np.frombuffer(bytes(names), np.uint8)


def _aligned(section: NDArray[Any]) -> tuple[memoryview, bytes]:
    """The bytes of a section, not copied, and what fills them up to the next section."""
    view = section.view(np.uint8).data
    return view, bytes(-len(view) % SECTION_ALIGNMENT)
