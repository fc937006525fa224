"""Reading a file of a registered repository, and nothing outside it."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path, PurePosixPath

from agentspec.errors import ForbiddenError, InvalidRequestError, NotFoundError

GIT_FOLDER = ".git"
"""Holds no source text, but credentials."""


def read_file(root: Path, path: str, most_bytes: int) -> str:
    """Text of a file of a repository.

    Symbolic links are followed first and only if they stay inside; what is then opened is opened part by part without
    following any, so that nobody can swap one in between.

    Args:
        root: the repository, its links resolved.
        path: relative to it.
        most_bytes: larger files are refused.

    Raises:
        ForbiddenError: the path leaves the repository, or names git's own folder.
        NotFoundError: there is no such file.
        InvalidRequestError: it is no text file, or too large.
    """
    if path.startswith("/") or "\0" in path:
        raise InvalidRequestError(f"path '{path}' is not relative to the repository", "path")
    real = Path(os.path.realpath(root / path))
    if not real.is_relative_to(root):
        raise ForbiddenError(f"path '{path}' leaves the repository", "path")
    parts = real.relative_to(root).parts
    if GIT_FOLDER in (*parts, *PurePosixPath(path).parts):
        raise ForbiddenError(f"path '{path}' belongs to git, not to the source text", "path")
    try:
        data = _read(root, parts, most_bytes + 1)
    except OSError as error:
        raise NotFoundError(f"the repository has no file '{path}': {error.strerror}", "path") from error
    if len(data) > most_bytes:
        raise InvalidRequestError(f"'{path}' is larger than {most_bytes} bytes", "path")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"'{path}' is not UTF-8 text", "path") from error


def _read(root: Path, parts: tuple[str, ...], most_bytes: int) -> bytes:
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    opened = [folder]
    try:
        for part in parts:
            folder = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
            opened.append(folder)
        if not stat.S_ISREG(os.fstat(folder).st_mode):
            raise IsADirectoryError(0, "it is no regular file")
        with open(folder, "rb", closefd=False) as file:
            return file.read(most_bytes)
    finally:
        for descriptor in opened:
            with suppress(OSError):
                os.close(descriptor)
