"""What `bench edit` and `demo` share: an indexed repository and a running engine."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from agentspec.config import Settings
    from agentspec.engines.base import Engine
    from agentspec.index.build import BuildReport


def index_repository(settings: Settings, repository: Path) -> BuildReport:
    """Bring the repository's index up to date.

    Raises:
        AgentspecError: see `agentspec.index.build.build_index`.
    """
    from agentspec.cli.index import tokenizer_of
    from agentspec.index.build import BuildOptions, build_index

    options = BuildOptions(settings.index.directory, settings.index.max_file_bytes)
    return build_index(repository, tokenizer_of(settings), options)


@asynccontextmanager
async def running_engine(settings: Settings, model: Path) -> AsyncIterator[Engine]:
    """An engine that knows the indexes on this machine; it stops with the context.

    Raises:
        ModelError: the model cannot be loaded.
    """
    from agentspec.benchmarking.editing import StoredRepositories
    from agentspec.engines.factory import create_engine

    engine = create_engine(settings, model, StoredRepositories(settings.index.directory))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()
