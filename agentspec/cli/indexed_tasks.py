"""Editing tasks over a repository, and what was opened to make them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from agentspec.benchmarking.codec import FileCodec
    from agentspec.benchmarking.editing import EditTask
    from agentspec.config import Settings
    from agentspec.index.snapshot import Snapshot


class IndexedTasks(NamedTuple):
    """Tasks of a repository.

    Attributes:
        snapshot: the repository's index.
        codec: the model's tokenizer.
        tasks: what to ask.
    """

    snapshot: Snapshot
    codec: FileCodec
    tasks: list[EditTask]


def indexed_tasks(
    settings: Settings, model: Path, repository: Path, kinds: Sequence[str] | None, count: int
) -> IndexedTasks:
    """Bring a repository's index up to date and make tasks over its files.

    Args:
        settings: say where the index lies.
        model: folder of the model, for its tokenizer.
        repository: a folder.
        kinds: of the tasks; None or none: all there are.
        count: of tasks.

    Raises:
        AgentspecError: see `agentspec.index.build.build_index`.
        InvalidRequestError: see `agentspec.benchmarking.tasks.editing_tasks`.
    """
    from agentspec.benchmarking.codec import FileCodec
    from agentspec.benchmarking.tasks import KINDS, editing_tasks
    from agentspec.cli.session import index_repository
    from agentspec.index.store import IndexStore

    codec = FileCodec.load(model)
    snapshot = IndexStore(index_repository(settings, repository).store).current()
    return IndexedTasks(snapshot, codec, editing_tasks(snapshot, codec, kinds or list(KINDS), count))
