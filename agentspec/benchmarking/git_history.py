"""Edits as a git history records them: one modified source file, before and after, with its repository."""

from __future__ import annotations

import os
import posixpath
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from agentspec.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import IO

# fmt: off
SOURCE_SUFFIXES = frozenset((
    ".bash", ".c", ".cc", ".cpp", ".cs", ".css", ".cxx", ".go", ".h", ".hpp", ".html", ".java", ".js", ".jsx", ".kt",
    ".lua", ".m", ".php", ".pl", ".py", ".rb", ".rs", ".scala", ".sh", ".sql", ".swift", ".ts", ".tsx", ".vue",
))
# fmt: on
MAX_FILE_BYTES = 150_000
"""Larger files are left out, edited or not: models are not asked to rewrite them."""
MAX_REPOSITORY_BYTES = 1_500_000
"""Source text of one repository that a trace carries, nearest to the edited file first."""
MAX_EDITS_PER_COMMIT = 3
"""So that one sweeping commit does not dominate the traces."""
_REGULAR_MODES = ("100644", "100755")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A text file at one commit.

    Attributes:
        path: relative to the repository's root, with forward slashes.
        blob: git's object id of its content.
        text: the content.
    """

    path: str
    blob: str
    text: str


@dataclass(frozen=True, slots=True)
class Edit:
    """One source file that a commit modified.

    Attributes:
        commit: full object id.
        subject: first line of the commit message; the instruction that led to the edit, more or less.
        before: the file at the commit's parent.
        after: the text that the commit made of it.
        siblings: other source files at the parent, nearest to the edited one first.
    """

    commit: str
    subject: str
    before: SourceFile
    after: str
    siblings: tuple[SourceFile, ...]


def recorded_edits(repository: Path, limit: int, every: int = 1, message: str | None = None) -> Iterator[Edit]:
    """The newest `limit` edits on the history of HEAD, newest first; merges are passed over.

    Args:
        repository: where its work tree or git directory is.
        limit: edits in all.
        every: of the commits, take one in so many, so that the edits reach further back.
        message: take only commits whose message matches this extended regular expression, whatever its case.

    Raises:
        InvalidRequestError: `repository` is no git repository with commits.
    """
    matching = [] if message is None else ["--extended-regexp", "--regexp-ignore-case", f"--grep={message}"]
    commits = _git(repository, "rev-list", "--no-merges", "--min-parents=1", *matching, "HEAD").split()
    with _blob_reader(repository) as read:
        for commit in commits[::every]:
            for edit in _edits_of(repository, commit, read):
                yield edit
                limit -= 1
                if limit <= 0:
                    return


def _edits_of(repository: Path, commit: str, read: _BlobReader) -> Iterator[Edit]:
    changes = _git(repository, "diff-tree", "-r", "-z", "--no-commit-id", "--no-renames", "--diff-filter=M", commit)
    fields = changes.split("\0")
    subject = _git(repository, "show", "-s", "--format=%s", commit).strip()
    found = 0
    for raw, path in zip(fields[:-1:2], fields[1::2], strict=True):
        old_mode, new_mode, old_blob, new_blob, _ = raw.lstrip(":").split()
        if not _is_source(path) or old_mode not in _REGULAR_MODES or new_mode not in _REGULAR_MODES:
            continue
        before, after = read.text(old_blob), read.text(new_blob)
        if not before or not after or before == after:
            continue
        yield Edit(
            commit=commit,
            subject=subject,
            before=SourceFile(path, old_blob, before),
            after=after,
            siblings=_siblings(repository, f"{commit}^", path, read),
        )
        found += 1
        if found == MAX_EDITS_PER_COMMIT:
            return


def _siblings(repository: Path, revision: str, edited: str, read: _BlobReader) -> tuple[SourceFile, ...]:
    listing = _git(repository, "ls-tree", "-r", "-z", "-l", "--full-tree", revision)
    entries: list[tuple[int, str, str, int]] = []
    for line in listing.split("\0")[:-1]:
        head, path = line.split("\t", 1)
        mode, _, blob, size = head.split()
        if mode in _REGULAR_MODES and path != edited and _is_source(path) and int(size) <= MAX_FILE_BYTES:
            entries.append((_distance(path, edited), path, blob, int(size)))
    files: list[SourceFile] = []
    room = MAX_REPOSITORY_BYTES
    for _, path, blob, length in sorted(entries):
        if length > room:
            break
        text = read.text(blob)
        if text:
            files.append(SourceFile(path, blob, text))
            room -= length
    return tuple(files)


def _distance(path: str, other: str) -> int:
    """Folders to leave and enter on the way from one file to the other."""
    way = posixpath.relpath(posixpath.dirname(path) or ".", posixpath.dirname(other) or ".")
    return len(PurePosixPath(way).parts)


def _is_source(path: str) -> bool:
    """Whether the path names source code; names that cannot be put into a prompt do not."""
    return PurePosixPath(path).suffix.lower() in SOURCE_SUFFIXES and path.isprintable()


def _git(repository: Path, *arguments: str) -> str:
    """Output of a git command run in `repository`, whatever repository the environment names."""
    command = ["git", "-C", str(repository), *arguments]
    try:
        result = subprocess.run(command, capture_output=True, check=True, env=_environment())
    except FileNotFoundError as error:
        raise InvalidRequestError("git is not installed; it is needed to read a history") from error
    except subprocess.CalledProcessError as error:
        message = error.stderr.decode(errors="replace").strip()
        raise InvalidRequestError(f"cannot read the git history of {repository}: {message}") from error
    return result.stdout.decode(errors="surrogateescape")


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}


class _BlobReader:
    """Reads blobs through one `git cat-file --batch`."""

    def __init__(self, requests: IO[bytes], answers: IO[bytes]) -> None:
        self._requests = requests
        self._answers = answers

    def text(self, blob: str) -> str | None:
        """The blob as UTF-8 text; None when it is binary, too large, or missing."""
        self._requests.write(blob.encode() + b"\n")
        self._requests.flush()
        header = self._answers.readline().split()
        if header[-1] == b"missing":
            return None
        content = self._answers.read(int(header[-1]) + 1)[:-1]
        if len(content) > MAX_FILE_BYTES or b"\0" in content:
            return None
        try:
            return content.decode()
        except UnicodeDecodeError:
            return None


@contextmanager
def _blob_reader(repository: Path) -> Iterator[_BlobReader]:
    command = ["git", "-C", str(repository), "cat-file", "--batch"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_environment()) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield _BlobReader(process.stdin, process.stdout)
        process.stdin.close()
