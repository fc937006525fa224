from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

import pytest

from agentspec.errors import AgentspecError, NotFoundError
from agentspec.index.build import BuildOptions, build_index
from agentspec.index.watch import watch_index

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agentspec.index.build import BuildReport
    from agentspec.index.tokenizer import IndexTokenizer

PATIENCE_SECONDS = 20.0


@pytest.fixture
def events(repository: Path, tokenizer: IndexTokenizer) -> Iterator[queue.Queue[BuildReport | AgentspecError]]:
    """What a watch with an index inside the watched repository reports."""
    heard: queue.Queue[BuildReport | AgentspecError] = queue.Queue()
    stop = threading.Event()
    options = BuildOptions(repository / "index", max_file_bytes=100_000)
    build_index(repository, tokenizer, options)
    (repository / "early.py").write_text("before = 1\n")
    watching = threading.Thread(
        target=watch_index,
        args=(repository, tokenizer, options),
        kwargs={"on_report": heard.put, "on_error": heard.put, "stop": stop},
    )
    watching.start()
    yield heard
    stop.set()
    watching.join(PATIENCE_SECONDS)
    assert not watching.is_alive()


def test_changes_are_indexed_as_they_come(events: queue.Queue[BuildReport | AgentspecError], repository: Path) -> None:
    report = events.get(timeout=PATIENCE_SECONDS)
    assert not isinstance(report, AgentspecError)
    assert report.files == 3, "what changed before the watch began is not missed"
    (repository / "late.py").write_text("after = 1\n")
    report = events.get(timeout=PATIENCE_SECONDS)
    assert not isinstance(report, AgentspecError)
    assert (report.files, report.new_documents) == (4, 1)
    with pytest.raises(queue.Empty):
        events.get(timeout=1.5)  # what the index itself writes is no change


def test_a_repository_that_does_not_exist_is_refused(
    tmp_path: Path, tokenizer: IndexTokenizer, options: BuildOptions
) -> None:
    with pytest.raises(NotFoundError):
        watch_index(tmp_path / "absent", tokenizer, options, on_report=print, on_error=print)
