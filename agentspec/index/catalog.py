"""The catalog of one generation: which path is which document of which segment. Mapped, searched in place."""

from __future__ import annotations

import os
from bisect import bisect_left
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from agentspec.errors import IndexStoreError
from agentspec.index._native import Mapping, checksum

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

_MAGIC = b"agentcat"
_VERSION = 1
_HEADER = np.dtype([("magic", "S8"), ("version", "<u4"), ("rows", "<u4"), ("path_bytes", "<u8"), ("checksum", "<u8")])


class CatalogRow(NamedTuple):
    """One path of a generation.

    Attributes:
        path: relative to the repository, `/` between its parts, as the bytes that the file system holds.
        segment: number of the segment within the generation.
        document: number of the document within the segment.
    """

    path: bytes
    segment: int
    document: int


def encode_catalog(rows: Sequence[CatalogRow]) -> bytes:
    """The bytes of a catalog file: header, path ends, segments, documents, rows by document, paths."""
    ordered = sorted(rows)
    segments = np.array([row.segment for row in ordered], np.uint32)
    documents = np.array([row.document for row in ordered], np.uint32)
    by_document = np.lexsort((documents, segments)).astype(np.uint32)
    ends = np.cumsum([len(row.path) for row in ordered], dtype=np.uint32)
    paths = b"".join(row.path for row in ordered)
    body = ends.tobytes() + segments.tobytes() + documents.tobytes() + by_document.tobytes() + paths
    header = np.zeros(1, _HEADER)
    header["magic"] = _MAGIC
    header["version"] = _VERSION
    header["rows"] = len(ordered)
    header["path_bytes"] = len(paths)
    header["checksum"] = checksum(np.frombuffer(body, np.uint8), len(ordered))
    return header.tobytes() + body


class Catalog:
    """A mapped catalog file. Rows are sorted by path; a damaged one yields nothing.

    Args:
        file: a file that `encode_catalog` made.

    Raises:
        IndexStoreError: the file is missing, truncated, damaged or of another format.
    """

    segments: NDArray[np.uint32]
    """`uint32[N]`: the segment of each row."""

    documents: NDArray[np.uint32]
    """`uint32[N]`: the document of each row."""

    def __init__(self, file: Path) -> None:
        self._mapping = Mapping(str(file))
        data = self._mapping.data
        if len(data) < _HEADER.itemsize:
            raise IndexStoreError(f"index catalog {file} is truncated; build the index again")
        header = data[: _HEADER.itemsize].view(_HEADER)[0]
        body = data[_HEADER.itemsize :]
        rows = int(header["rows"])
        if header["magic"] != _MAGIC or header["version"] != _VERSION:
            raise IndexStoreError(f"{file} is not an index catalog of format {_VERSION}; build the index again")
        if len(body) != 16 * rows + int(header["path_bytes"]) or checksum(body, rows) != header["checksum"]:
            raise IndexStoreError(f"index catalog {file} is damaged; build the index again")
        columns = body[: 16 * rows].view(np.uint32).reshape(4, rows)
        self._ends, self.segments, self.documents, self._by_document = columns
        self._paths = body[16 * rows :]

    def __len__(self) -> int:
        return len(self._ends)

    def path(self, row: int) -> bytes:
        """The path of a row."""
        begin = int(self._ends[row - 1]) if row else 0
        return self._paths[begin : int(self._ends[row])].tobytes()

    def paths(self) -> list[bytes]:
        """The paths of all rows."""
        paths, ends = self._paths.tobytes(), self._ends.tolist()
        return [paths[begin:end] for begin, end in pairwise([0, *ends])]

    def find(self, path: bytes) -> int | None:
        """The row of a path, or None."""
        row = bisect_left(range(len(self)), path, key=self.path)
        found = row < len(self) and self.path(row) == path and not self._mapping.damaged
        return row if found else None

    def paths_of(self, segment: int, document: int) -> list[str]:
        """All paths whose content is this document, in ascending order."""

        def place(index: int) -> tuple[int, int]:
            row = min(int(self._by_document[index]), len(self) - 1)
            return int(self.segments[row]), int(self.documents[row])

        wanted = (segment, document)
        index = bisect_left(range(len(self)), wanted, key=place)
        paths: list[str] = []
        while index < len(self) and place(index) == wanted:
            paths.append(os.fsdecode(self.path(int(self._by_document[index]))))
            index += 1
        return [] if self._mapping.damaged else paths
