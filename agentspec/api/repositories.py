"""Repositories that callers registered: who may use which, and how far their indexes are."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import structlog

from agentspec.errors import AgentspecError, ForbiddenError, InvalidRequestError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agentspec.index.snapshot import Snapshot

State = Literal["queued", "indexing", "ready", "failed"]

log = structlog.get_logger("agentspec.repositories")


class Indexer(Protocol):
    """Builds and opens the index of one folder. Its methods block; both may be called from any thread."""

    def build(self, root: Path, progress: Callable[[int, int], None]) -> None:
        """Bring the index of `root` up to date.

        Args:
            root: the repository.
            progress: told files done and files in all, now and then; what it raises ends the build.

        Raises:
            AgentspecError: the index cannot be built; the published generation is unchanged.
        """

    def snapshot(self, root: Path, fingerprint: str) -> Snapshot:
        """The published generation of the index of `root`.

        Raises:
            IndexStoreError: there is none, or none that can be used.
            TokenizerMismatchError: it was made with another tokenizer than `fingerprint` names.
        """


class BuildCancelledError(Exception):
    """A build ended because its repository was removed or the server stops."""


@dataclass(slots=True)
class Repository:
    """A registered repository.

    Attributes:
        id: names it in requests.
        path: its folder, symbolic links resolved.
        owner: the caller that registered it, and the only one that may see or use it.
        created: Unix time of the registration.
        state: how far its index is; drafts come from the last generation built, whatever the state.
        files_done: files indexed by the build that runs or ran last.
        files_total: files that build has to index.
        error: why the last build failed.
    """

    id: str
    path: Path
    owner: str
    created: int
    state: State = "queued"
    files_done: int = 0
    files_total: int = 0
    error: str | None = None
    cancelled: threading.Event = field(default_factory=threading.Event, repr=False)

    def report(self, done: int, total: int) -> None:
        """Take note of a build's progress.

        Raises:
            BuildCancelledError: the build is not wanted any more.
        """
        if self.cancelled.is_set():
            raise BuildCancelledError
        self.files_done, self.files_total = done, total


class RepositoryRegistry:
    """Registers repositories below allowed folders and has their indexes built, one at a time, in the background.

    Registrations live as long as the server; the indexes stay on disk, so registering again is quick.
    All methods but `snapshot_for` belong to one event loop.

    Args:
        allowed_roots: repositories must lie in or below one of these.
        indexer: builds and opens indexes.
    """

    def __init__(self, allowed_roots: Iterable[Path], indexer: Indexer) -> None:
        self._roots = tuple(_real(root) for root in allowed_roots)
        self._indexer = indexer
        self._repositories: dict[str, Repository] = {}
        self._builds: dict[str, asyncio.Task[None]] = {}
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="agentspec-index")

    def register(self, path: str, owner: str) -> Repository:
        """Register the repository at `path`, or refresh its index when `owner` has registered it before.

        Raises:
            ForbiddenError: it lies outside the allowed folders, its symbolic links resolved.
            NotFoundError: there is no such folder.
        """
        root = self._resolve(path)
        known = [r for r in self._owned_by(owner) if r.path == root]
        repository = known[0] if known else Repository(f"repo-{uuid.uuid4().hex}", root, owner, int(time.time()))
        self._repositories[repository.id] = repository
        if repository.id not in self._builds:
            repository.state = "queued"
            self._builds[repository.id] = asyncio.create_task(self._build(repository))
        return repository

    def list(self, owner: str) -> list[Repository]:
        """What `owner` registered, oldest first."""
        return list(self._owned_by(owner))

    def find(self, name: str, owner: str) -> Repository:
        """A repository of `owner` by id or by path.

        Raises:
            NotFoundError: there is none; another owner's is answered like one that does not exist.
        """
        path = _real(name) if name.startswith("/") and "\0" not in name else None
        for repository in self._owned_by(owner):
            if name == repository.id or path == repository.path:
                return repository
        raise NotFoundError(f"no repository '{name}' is registered; POST its path to /v1/repositories", "repository")

    def remove(self, name: str, owner: str) -> Repository:
        """Forget a repository of `owner` and stop its build. The index stays on disk.

        Raises:
            NotFoundError: as `find`.
        """
        repository = self.find(name, owner)
        repository.cancelled.set()
        del self._repositories[repository.id]
        return repository

    def snapshot_for(self, repository_id: str, fingerprint: str) -> Snapshot:
        """The newest generation of a repository's index, for the engine. Thread-safe.

        Args:
            repository_id: id, as `find` gave it for the caller of the request.
            fingerprint: of the model's tokenizer.

        Raises:
            NotFoundError: the repository was removed meanwhile.
            IndexStoreError: no generation has been built yet, or it cannot be used.
        """
        repository = self._repositories.get(repository_id)
        if repository is None:
            raise NotFoundError(f"repository '{repository_id}' is not registered any more", "repository")
        return self._indexer.snapshot(repository.path, fingerprint)

    async def close(self) -> None:
        """Stop all builds."""
        for repository in self._repositories.values():
            repository.cancelled.set()
        await asyncio.gather(*self._builds.values())
        self._executor.shutdown()

    def _owned_by(self, owner: str) -> Iterable[Repository]:
        return (repository for repository in self._repositories.values() if repository.owner == owner)

    def _resolve(self, path: str) -> Path:
        if not path.startswith("/") or "\0" in path:
            raise InvalidRequestError(f"path '{path}' is not an absolute path", "path")
        # Outside the allowed folders the answer is the same whether or not something is there.
        root = _real(path)
        if not any(root.is_relative_to(allowed) for allowed in self._roots):
            raise ForbiddenError(
                f"'{path}' is outside the folders that this server may index; see its setting index.allowed_roots",
                "path",
            )
        try:
            if not root.is_dir():
                raise NotFoundError(f"'{path}' is not a folder", "path")
        except OSError as error:
            raise NotFoundError(f"'{path}' cannot be read: {error.strerror}", "path") from error
        return root

    async def _build(self, repository: Repository) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._executor, self._build_now, repository)
            repository.state = "ready"
        except BuildCancelledError:
            log.info("index build cancelled", repository=repository.id)
        except AgentspecError as error:
            repository.state, repository.error = "failed", str(error)
        except Exception:
            log.exception("index build failed", repository=repository.id)
            repository.state, repository.error = "failed", "the index build failed; the server's log has the cause"
        finally:
            del self._builds[repository.id]

    def _build_now(self, repository: Repository) -> None:
        repository.report(0, 0)
        repository.state, repository.error = "indexing", None
        if _real(repository.path) != repository.path:
            raise ForbiddenError(f"'{repository.path}' was replaced by a symbolic link after it was registered")
        self._indexer.build(repository.path, repository.report)


def _real(path: str | Path) -> Path:
    """The path with its links and dots resolved, whether or not it exists; unlike `Path.resolve` it takes loops."""
    return Path(os.path.realpath(path))
