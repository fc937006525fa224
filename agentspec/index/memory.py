"""What earlier runs found out about files, so that files that did not change need not be read again.

Beside the published generations and no part of them: losing it costs time, nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from agentspec.index._native import checksum
from agentspec.index.durable import write_file
from agentspec.index.rules import RULES_VERSION, Reason

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from pathlib import Path

MEMORY_NAME = "files.memory"

_COARSE_CLOCK_NS = 2_000_000_000
_FINE_CLOCK_NS = 50_000_000
_SECOND_NS = 1_000_000_000

_REASONS = list(Reason)
_HEADER = np.dtype([("key", "S64"), ("rows", "<u8"), ("checksum", "<u8")])
_ROW = np.dtype(
    [
        ("size", "<i8"),
        ("modified", "<i8"),
        ("changed", "<i8"),
        ("inode", "<u8"),
        ("path_bytes", "<u4"),
        ("reason", "<u4"),
        ("blob", "V20"),
    ]
)


class FileStatus(NamedTuple):
    """What the file system says of a file's content without reading it.

    Attributes:
        size: bytes.
        modified: time of the last write, in nanoseconds.
        changed: time of the last change of the file's own record, in nanoseconds.
        inode: number of the file.
    """

    size: int
    modified: int
    changed: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileStatus:
        """Pick the fields."""
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)

    def is_settled(self, now: int) -> bool:
        """Whether a later write would be seen in these fields, looked at `now` nanoseconds.

        A write within one tick of the file system's clock leaves the times as they are. Whole seconds mean that the
        clock ticks that slowly.
        """
        coarse = self.modified % _SECOND_NS == 0 and self.changed % _SECOND_NS == 0
        return max(self.modified, self.changed) + (_COARSE_CLOCK_NS if coarse else _FINE_CLOCK_NS) < now


@dataclass(frozen=True, slots=True)
class Remembered:
    """What was found in a file.

    Attributes:
        status: of the file when it was read.
        verdict: the index's name for its content (`document_id`), or why it is left out.
    """

    status: FileStatus
    verdict: bytes | Reason


def load_memory(directory: Path, max_file_bytes: int) -> dict[bytes, Remembered]:
    """What is remembered by path; empty when nothing is, or not under the present rules."""
    try:
        content = np.frombuffer((directory / MEMORY_NAME).read_bytes(), np.uint8)
    except OSError:
        return {}
    if len(content) < _HEADER.itemsize:
        return {}
    header = content[: _HEADER.itemsize].view(_HEADER)[0]
    body = content[_HEADER.itemsize :]
    count = int(header["rows"])
    if header["key"] != _key(max_file_bytes) or header["checksum"] != checksum(body, count):
        return {}
    rows = body[: count * _ROW.itemsize].view(_ROW)
    paths = body[count * _ROW.itemsize :].tobytes()
    memory: dict[bytes, Remembered] = {}
    begin = 0
    for size, modified, changed, inode, path_bytes, reason, blob in rows.tolist():
        verdict = _REASONS[reason - 1] if reason else blob
        memory[paths[begin : begin + path_bytes]] = Remembered(FileStatus(size, modified, changed, inode), verdict)
        begin += path_bytes
    return memory


def save_memory(directory: Path, max_file_bytes: int, memory: Mapping[bytes, Remembered]) -> None:
    """Remember.

    Raises:
        IndexStoreError: it cannot be written.
    """
    rows = np.zeros(len(memory), _ROW)
    for row, (path, known) in enumerate(memory.items()):
        indexed = not isinstance(known.verdict, Reason)
        reason = 0 if isinstance(known.verdict, bytes) else _REASONS.index(known.verdict) + 1
        rows[row] = (*known.status, len(path), reason, known.verdict if indexed else bytes(20))
    body = rows.tobytes() + b"".join(memory)
    header = np.zeros(1, _HEADER)
    header["key"] = _key(max_file_bytes)
    header["rows"] = len(rows)
    header["checksum"] = checksum(np.frombuffer(body, np.uint8), len(rows))
    write_file(directory / MEMORY_NAME, [header.tobytes(), body])


def _key(max_file_bytes: int) -> bytes:
    return f"memory 1, rules {RULES_VERSION}, at most {max_file_bytes} bytes".encode()
