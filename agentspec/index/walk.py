"""Lists the files of a repository: as git sees them, or by its `.gitignore` files where there is no git."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from pathspec import GitIgnoreSpec

from agentspec.errors import InvalidRequestError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator

_GIT = ("git", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false")
"""A repository's own settings may name a program to run as file monitor; listing files must not run it."""

_LIST_FILES = ("ls-files", "-z", "--cached", "--others", "--exclude-standard")

_Rules = list[tuple[bytes, GitIgnoreSpec]]
"""Ignore rules from the outermost folder inwards, each with the path of its folder and `/` (empty for the root)."""

DEFAULT_IGNORES = """\
.git
.hg
.svn
.jj
CVS
.DS_Store
.idea/
.gradle/
.terraform/
.tox/
.nox/
.venv/
venv/
node_modules/
__pycache__/
.mypy_cache/
.ruff_cache/
.pytest_cache/
.hypothesis/
*.pyc
*.o
*.obj
*.so
*.dylib
*.dll
*.class
"""
"""Outside git, what is ignored before any `.gitignore` file is read."""


def check_repository(root: Path) -> Path:
    """The repository's folder, symbolic links resolved.

    Raises:
        NotFoundError: it does not exist.
        InvalidRequestError: it is not a folder, or may not be listed.
    """
    try:
        is_folder = stat.S_ISDIR(root.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        raise NotFoundError(f"repository {root} does not exist") from error
    except OSError as error:
        raise InvalidRequestError(f"repository {root} cannot be looked at: {error.strerror}") from error
    if not is_folder:
        raise InvalidRequestError(f"repository {root} is not a folder")
    if not os.access(root, os.R_OK | os.X_OK):
        raise InvalidRequestError(f"repository {root} may not be read; check its permissions")
    return root.resolve()


def list_files(root: Path) -> list[bytes]:
    """Paths below `root`, sorted, `/` between their parts, as the bytes that the file system holds.

    In a git work tree these are the tracked files and the untracked ones that are not ignored; repositories inside the
    repository are listed as one path each. A folder that git ignores itself is listed as if there were no git.

    Raises:
        InvalidRequestError: git refuses to list the files; the message holds git's own.
    """
    listed = _list_by_git(root)
    return sorted(_list_by_gitignore(os.fsencode(root)) if listed is None else listed)


def _list_by_git(root: Path) -> set[bytes] | None:
    try:
        listing = _run_git(root, *_LIST_FILES)
    except FileNotFoundError:
        return None
    if listing.returncode != 0:
        message = listing.stderr.decode(errors="replace").strip()
        if "not a git repository" in message or "must be run in a work tree" in message:
            return None
        raise InvalidRequestError(f"git cannot list the files of {root}: {message}")
    paths = {path.rstrip(b"/") for path in listing.stdout.split(b"\0") if path}
    if not paths and _run_git(root, "check-ignore", "--quiet", ".").returncode == 0:
        return None
    return paths


def _run_git(root: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return subprocess.run(
        [*_GIT, *arguments], cwd=root, env={**environment, "LC_ALL": "C"}, capture_output=True, check=False
    )


def _list_by_gitignore(root: bytes) -> Iterator[bytes]:
    """Lists a tree; a folder that may not be read is listed itself."""
    waiting: list[tuple[bytes, _Rules]] = [(b"", [(b"", GitIgnoreSpec.from_lines(DEFAULT_IGNORES.splitlines()))])]
    while waiting:
        prefix, rules = waiting.pop()
        folder = root + b"/" + prefix
        own = _read_gitignore(Path(os.fsdecode(folder)))
        if own is not None:
            rules = [*rules, (prefix, own)]
        try:
            entries = list(os.scandir(folder))
        except OSError:
            yield prefix.rstrip(b"/")
            continue
        for entry in entries:
            path = prefix + entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if _is_ignored(rules, path + b"/" * is_folder):
                continue
            if is_folder:
                waiting.append((path + b"/", rules))
            else:
                yield path


def _read_gitignore(folder: Path) -> GitIgnoreSpec | None:
    file = folder / ".gitignore"
    try:
        if not stat.S_ISREG(file.lstat().st_mode):
            return None
        return GitIgnoreSpec.from_lines(file.read_text(errors="surrogateescape").splitlines())
    except OSError:
        return None


def _is_ignored(rules: _Rules, path: bytes) -> bool:
    """Whether the innermost `.gitignore` file that says anything about `path` excludes it."""
    for prefix, spec in reversed(rules):
        verdict = spec.check_file(os.fsdecode(path[len(prefix) :])).include
        if verdict is not None:
            return verdict
    return False
