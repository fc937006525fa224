"""File operations that survive a crash at any instant, and say clearly when the disk is full."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from agentspec.errors import IndexStoreError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

TEMPORARY_SUFFIX = ".tmp"
"""Ending of files that are being written; what a crash leaves of them is removed by the next writer."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_file(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write a file so that under `path` there is, at any instant, the old content or all of the new.

    The content is on the disk when this returns; so is its name after `sync_directory`.

    Raises:
        IndexStoreError: it cannot be written; the message says so where the disk is full. Nothing has changed.
    """
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    try:
        _write_through(temporary, parts)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if error.errno in _FULL:
            raise IndexStoreError(
                f"no space left to write {path}; the published index is unchanged. Free some space and run again"
            ) from error
        raise IndexStoreError(f"cannot write {path}: {error.strerror}; the published index is unchanged") from error


def sync_directory(directory: Path) -> None:
    """Put renames and removals inside `directory` on the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_through(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        for part in parts:
            rest = memoryview(part)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
