"""Which index a request drafts from, as the worker is told."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from agentspec.errors import AgentspecError, ModelError
from agentspec.index.tokenizer import IndexTokenizer

if TYPE_CHECKING:
    from agentspec.engines.base import GenerationRequest
    from agentspec.engines.local.preparation import RepositorySource
    from agentspec.index.snapshot import Snapshot

_log = structlog.get_logger(__name__)


class RepositoryUse:
    """Finds the indexes of one served model.

    Args:
        directory: of the indexes.
        repositories: gives the newest index snapshot of a repository; None where there are no indexes.
    """

    def __init__(self, directory: Path, repositories: RepositorySource | None) -> None:
        self._directory = directory
        self._repositories = repositories
        self._fingerprint: str | None = None

    def learn_tokenizer(self, tokenizer: str) -> None:
        """Take note of the server's tokenizer; when it cannot be read from here no index is used."""
        try:
            self._fingerprint = IndexTokenizer(tokenizer, self._directory).identity.fingerprint
        except ModelError as error:
            _log.warning("indexes are not used", reason=str(error))

    def params(self, request: GenerationRequest, warnings: list[str]) -> dict[str, Any]:
        """The index of a request's repository by store and generation; nothing, and a warning, where there is none.

        Args:
            request: that may name a repository.
            warnings: for its receipt.
        """
        snapshot = self._snapshot(request, warnings)
        if snapshot is None or not snapshot.segments:
            return {}
        folder = Path(snapshot.segments[0].path).parent
        store = folder.resolve().relative_to(self._directory.resolve()).as_posix()
        return {"store": store, "generation": snapshot.generation}

    def _snapshot(self, request: GenerationRequest, warnings: list[str]) -> Snapshot | None:
        if request.repository is None:
            return None
        if self._repositories is None or self._fingerprint is None:
            warnings.append("the repository is not used: this engine has no indexes for its tokenizer")
            return None
        try:
            return self._repositories.snapshot_for(request.repository, self._fingerprint)
        except AgentspecError as error:
            warnings.append(f"the repository is not used: {error}")
            return None
