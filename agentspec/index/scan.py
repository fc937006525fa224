"""Looks at every file of a repository: what to index, what to leave out and why."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentspec.index.grammars import grammar_in
from agentspec.index.memory import FileStatus, Remembered
from agentspec.index.rules import Reason, read_text, refuse_path
from agentspec.index.walk import list_files

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agentspec.index.grammars import Grammar


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file of the repository.

    Attributes:
        path: relative to the repository, `/` between its parts, as bytes.
        status: what the file system says of it; None for a file that is left out without looking into it.
        verdict: `document_id` of its content, why it is left out, or None when it has to be read first.
    """

    path: bytes
    status: FileStatus | None
    verdict: bytes | Reason | None


@dataclass(frozen=True, slots=True)
class FileText:
    """A file that was read.

    Attributes:
        blob: `document_id` of its bytes as they are in the work tree.
        text: what is to be tokenised.
    """

    blob: bytes
    text: str


class Scanner:
    """Looks at one repository.

    Args:
        root: the repository, symbolic links resolved.
        max_file_bytes: larger files are left out.
        memory: what earlier runs found out.
    """

    def __init__(self, root: Path, max_file_bytes: int, memory: Mapping[bytes, Remembered]) -> None:
        self._base = os.fsencode(root)
        self._root = root
        self._max_file_bytes = max_file_bytes
        self._memory = memory
        self._linked_folders: dict[bytes, bool] = {b"": False}
        self._started = time.time_ns()

    def survey(self) -> list[FoundFile]:
        """All files of the repository, by path, without reading any.

        Raises:
            InvalidRequestError: see `list_files`.
        """
        found = (self._look_at(path) for path in list_files(self._root))
        return [file for file in found if file is not None]

    def read(self, path: bytes) -> FileText | Reason:
        """Read and judge a file."""
        try:
            content = self._read_regular_file(path)
        except OSError as error:
            return Reason.SYMLINK if error.errno == errno.ELOOP else Reason.UNREADABLE
        if content is None:
            return Reason.SPECIAL
        if len(content) > self._max_file_bytes:
            return Reason.TOO_LARGE
        text = read_text(content)
        if isinstance(text, Reason):
            return text
        return FileText(document_id(content, grammar_in(os.fsdecode(path), text)), text)

    def worth_remembering(self, files: Mapping[bytes, Remembered]) -> dict[bytes, Remembered]:
        """Those files whose next change will show in their status."""
        return {path: known for path, known in files.items() if known.status.is_settled(self._started)}

    def _look_at(self, path: bytes) -> FoundFile | None:
        try:
            status = os.lstat(self._full(path))
        except (FileNotFoundError, NotADirectoryError):
            return None  # tracked, but deleted in the work tree
        except OSError:
            return FoundFile(path, None, Reason.UNREADABLE)
        refused = self._refuse(path, status)
        if refused is not None:
            return FoundFile(path, None, refused)
        now = FileStatus.of(status)
        known = self._memory.get(path)
        return FoundFile(path, now, known.verdict if known is not None and known.status == now else None)

    def _refuse(self, path: bytes, status: os.stat_result) -> Reason | None:
        if stat.S_ISLNK(status.st_mode) or self._is_below_link(path):
            return Reason.SYMLINK
        if stat.S_ISDIR(status.st_mode):
            return Reason.SUBMODULE if os.access(self._full(path), os.R_OK | os.X_OK) else Reason.UNREADABLE
        if not stat.S_ISREG(status.st_mode):
            return Reason.SPECIAL
        reason = refuse_path(path)
        if reason is None and status.st_size > self._max_file_bytes:
            return Reason.TOO_LARGE
        return reason

    def _is_below_link(self, path: bytes) -> bool:
        """Whether a folder on the way to `path` is a link: git may still list files behind it."""
        folder = path.rpartition(b"/")[0]
        if folder not in self._linked_folders:
            is_link = stat.S_ISLNK(os.lstat(self._full(folder)).st_mode)
            self._linked_folders[folder] = is_link or self._is_below_link(folder)
        return self._linked_folders[folder]

    def _read_regular_file(self, path: bytes) -> bytes | None:
        descriptor = os.open(self._full(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            return file.read(self._max_file_bytes + 1)

    def _full(self, path: bytes) -> bytes:
        return self._base + b"/" + path


def document_id(content: bytes, grammar: Grammar | None) -> bytes:
    """The 20 bytes by which the index knows a file's content: its blob id, with the language that its marks are of.

    Files of equal content share a document, but not the marks of one language between files of several.
    """
    blob = blob_id(content)
    if grammar is None:
        return blob
    return hashlib.sha1(blob + grammar.language.encode(), usedforsecurity=False).digest()


def blob_id(content: bytes) -> bytes:
    """The 20 bytes by which git names a file's content (in repositories of SHA-1 objects)."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).digest()
