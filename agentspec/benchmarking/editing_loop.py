"""The loop of the demo: three edits of one settings file, each as an editor or an agent would ask for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentspec.benchmarking.editing import EditTask, Pair
from agentspec.benchmarking.measure import measure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentspec.benchmarking.measure import Measurement
    from agentspec.engines.base import Engine

EDITED_FILE = "configs/local.yaml"
"""Of this repository, and of the size that a small model rewrites without losing its way."""

MAX_TOKENS = 256
FENCE = "```"
_DIVIDER = "=======\n"


class EditingLoop:
    """Makes each request from the answers before it.

    Args:
        text: content of the edited file.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._rewrite = _listing(", before", text) + _heading("the server listens on port 9000")
        self.steps: tuple[Callable[[Sequence[str]], EditTask], ...] = (
            self._whole_file,
            self._search_replace,
            self._follow_up,
        )

    async def run(
        self,
        engine: Engine,
        repository: str,
        *,
        speculation: bool,
        announce: Callable[[EditTask], None],
        show: Callable[[str], None],
    ) -> list[tuple[EditTask, Measurement]]:
        """Run every request in one mode.

        Args:
            engine: ready; its caches should hold nothing of an earlier loop.
            repository: id under which the engine knows the repository.
            speculation: the mode.
            announce: called before each request.
            show: called with each piece of its text.
        """
        await measure(engine, _WARM_UP.request(repository, speculation=speculation))
        done: list[tuple[EditTask, Measurement]] = []
        for step in self.steps:
            task = step([measured.text for _, measured in done])
            announce(task)
            done.append((task, await measure(engine, task.request(repository, speculation=speculation), show)))
        return done

    def _whole_file(self, _: Sequence[str]) -> EditTask:
        return _task("whole file", self._rewrite, FENCE)

    def _search_replace(self, _: Sequence[str]) -> EditTask:
        """The client has picked the lines to replace; an earlier edit stands in the conversation."""
        server, drafting = _section(self._text, "server:"), _section(self._text, "drafting:")
        earlier = f"{_search(drafting)}{drafting.replace('64', '32')}>>>>>>> REPLACE\n"
        edits = f"# Edit: draft at most 32 nodes\n\n{earlier}\n# Edit: listen on port 9000\n\n{_search(server)}"
        return _task("search/replace", _listing("", self._text) + edits, ">>>>>>> REPLACE", _DIVIDER)

    def _follow_up(self, answers: Sequence[str]) -> EditTask:
        """Another rewrite in the conversation of the first one, whose prompt and answer are its prefix."""
        conversation = f"{self._rewrite}{answers[0]}{FENCE}\n\n{_heading('the device is cpu')}"
        return _task("follow-up", conversation, FENCE)


def paired(
    plain: Sequence[tuple[EditTask, Measurement]], drafted: Sequence[tuple[EditTask, Measurement]]
) -> list[Pair]:
    """The two runs of a loop side by side."""
    return [Pair(task, without, with_drafts) for (task, without), (_, with_drafts) in zip(plain, drafted, strict=True)]


def _task(name: str, prompt: str, *stop: str) -> EditTask:
    return EditTask(name, name, prompt, stop, MAX_TOKENS, EDITED_FILE)


_WARM_UP = EditTask("warm-up", "warm-up", "def add(a, b):\n", (), 16, EDITED_FILE)
"""Not counted: threads, allocators and caches come to life in it."""


def _listing(remark: str, content: str) -> str:
    return f"# {EDITED_FILE}{remark}\n\n{FENCE}yaml\n{content}{FENCE}\n\n"


def _heading(change: str) -> str:
    return f"# {EDITED_FILE}, after: {change}\n\n{FENCE}yaml\n"


def _section(text: str, heading: str) -> str:
    """The lines from `heading` to the next blank line."""
    return text[text.index(heading) :].partition("\n\n")[0].rstrip("\n") + "\n"


def _search(lines: str) -> str:
    """A search/replace block up to where the new lines begin."""
    return f"<<<<<<< SEARCH\n{lines}{_DIVIDER}"
