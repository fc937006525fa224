"""Keeps an index up to date while people work in the repository."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from watchfiles import DefaultFilter, watch

from agentspec.errors import AgentspecError
from agentspec.index.build import build_index
from agentspec.index.walk import check_repository

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from watchfiles import Change

    from agentspec.index.build import BuildOptions, BuildReport
    from agentspec.index.tokenizer import IndexTokenizer

DEBOUNCE_MS = 500
"""Changes that follow one another this closely are indexed together (milliseconds)."""


_ROUND_MS = 500
"""How long a round waits for changes (milliseconds)."""


class _OutsideIndex(DefaultFilter):
    """Ignores version control, caches, and the index itself where it lies inside the repository."""

    def __init__(self, index_directory: Path) -> None:
        super().__init__()
        self._index_directory = index_directory

    def __call__(self, change: Change, path: str) -> bool:
        return super().__call__(change, path) and not Path(path).is_relative_to(self._index_directory)


def watch_index(
    repository: Path,
    tokenizer: IndexTokenizer,
    options: BuildOptions,
    *,
    on_report: Callable[[BuildReport], None],
    on_error: Callable[[AgentspecError], None],
    stop: threading.Event | None = None,
) -> None:
    """Bring the index up to date after every change, until interrupted or until `stop` is set.

    Args:
        repository: its folder.
        tokenizer: whose tokens are indexed.
        options: how to build.
        on_report: told of each build that published something.
        on_error: told of each build that failed; the next change is tried again.
        stop: ends the watch when set.

    Raises:
        NotFoundError: the repository does not exist.
        InvalidRequestError: it is no folder.
    """
    root = check_repository(repository)
    rounds = watch(
        root,
        watch_filter=_OutsideIndex(options.index_directory.resolve()),
        debounce=DEBOUNCE_MS,
        stop_event=stop,
        rust_timeout=_ROUND_MS,
        yield_on_timeout=True,
        raise_interrupt=False,
    )
    for number, changes in enumerate(rounds):
        if not changes and number > 0:
            continue  # the first round builds in any case: something may have changed before the watch began
        try:
            report = build_index(root, tokenizer, options)
        except AgentspecError as error:
            on_error(error)
        else:
            if report.changed:
                on_report(report)
