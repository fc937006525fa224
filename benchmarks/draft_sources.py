"""Acceptance by position and by source, of each kind of draft in the embedded engine on the same requests.

    python benchmarks/draft_sources.py --repository . --prompts 40 --plot docs/images/acceptance.svg

Speed is `agentspec bench edit --sources`, other machines are `draft_simulation.py`; this looks inside the trees.
Texts that differ end the run with 1.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import defaultdict
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from agentspec.benchmarking.draft_modes import PLAIN, draft_modes, mode_rows, run_modes
from agentspec.benchmarking.tasks import KINDS
from agentspec.cli.indexed_tasks import indexed_tasks
from agentspec.cli.ready_model import ready_model
from agentspec.config import Settings
from agentspec.drafters.base import StreamDrafter, StreamSession
from agentspec.drafters.eagle3.drafter import shipped_head
from agentspec.drafters.tree import ROOT, DraftTree, Source
from agentspec.engines.local.target import load_target
from benchmarks.acceptance_plot import Line, draw

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from agentspec.drafters.base import Budget, Drafter, DraftReceipt, DraftRequest, DraftSession

POSITIONS = 10
"""Drafted tokens of a path that are told apart."""


class Observed:
    """What became of one mode's drafts.

    Attributes:
        steps: verify steps over a draft.
        reached: entry k, steps that accepted at least k + 1 drafted tokens.
        judged: by source, entry k, nodes at depth k + 1 whose parent was accepted.
        right: by source, those of them that were accepted.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.reached = [0] * POSITIONS
        self.judged: dict[Source, list[int]] = defaultdict(lambda: [0] * POSITIONS)
        self.right: dict[Source, list[int]] = defaultdict(lambda: [0] * POSITIONS)

    def add(self, tree: DraftTree, emitted: list[int]) -> None:
        """Note the verdict on a tree that has nodes."""
        path = tree.accepted_path(emitted)
        self.steps += 1
        for depth in range(min(len(path), POSITIONS)):
            self.reached[depth] += 1
        for depth, parent in enumerate([ROOT, *path][:POSITIONS]):
            for node in (tree.parents == parent).nonzero()[0].tolist():
                source = Source(int(tree.source[node]))
                self.judged[source][depth] += 1
                self.right[source][depth] += node in path


class ObservedSession:
    """A session whose trees and verdicts are noted; reads the target's streams where the session does."""

    def __init__(self, session: DraftSession, observed: Observed) -> None:
        self._session = session
        self._observed = observed
        self._tree = DraftTree.empty()

    def propose(self, budget: Budget) -> DraftTree:
        """See `agentspec.drafters.base.DraftSession.propose`."""
        self._tree = self._session.propose(budget)
        return self._tree

    def commit(self, tokens: NDArray[np.int32]) -> None:
        """See `agentspec.drafters.base.DraftSession.commit`."""
        if len(self._tree):
            self._observed.add(self._tree, tokens.tolist())
        self._tree = DraftTree.empty()
        self._session.commit(tokens)

    def read(self, start: int, streams: Tensor) -> None:
        """See `agentspec.drafters.base.StreamSession.read`."""
        if isinstance(self._session, StreamSession):
            self._session.read(start, streams)

    def receipt(self) -> DraftReceipt:
        """Counts so far."""
        return self._session.receipt()


class ObservedDrafter:
    """Makes `ObservedSession`s of another drafter's."""

    def __init__(self, drafter: Drafter | StreamDrafter) -> None:
        self.observed = Observed()
        self.capture = drafter.capture if isinstance(drafter, StreamDrafter) else ()
        self._drafter = drafter

    def begin(self, request: DraftRequest) -> ObservedSession:
        """Start drafting for one request."""
        return ObservedSession(self._drafter.begin(request), self.observed)


def report(observed: dict[str, Observed]) -> None:
    """Print what `draw` shows."""
    header = " | ".join(str(position + 1) for position in range(POSITIONS))
    print(f"\n| steps that accepted at least | {header} |\n| --- |{' --- |' * POSITIONS}")
    for mode, one in observed.items():
        print(f"| {mode} | " + " | ".join(f"{count / max(1, one.steps):.2f}" for count in one.reached) + " |")
    print(f"\n| nodes accepted, of those judged at depth | {header} |\n| --- |{' --- |' * POSITIONS}")
    for mode, one in observed.items():
        for source in one.judged:
            shares = _shares(one, source)
            cells = (f"{share:.2f} ({judged})" for share, judged in zip(shares, one.judged[source], strict=True))
            print(f"| {mode}, {source.name.lower()} | " + " | ".join(cells) + " |")


def _shares(one: Observed, source: Source) -> list[float]:
    return [
        right / judged if judged else 0.0 for right, judged in zip(one.right[source], one.judged[source], strict=True)
    ]


def plot(observed: dict[str, Observed], file: Path) -> None:
    """Write both tables as one picture."""
    modes = [Line(mode, [count / max(1, one.steps) for count in one.reached]) for mode, one in observed.items()]
    last = observed["fused"] if "fused" in observed else next(iter(observed.values()))
    enough = 20  # fewer judged nodes say little
    sources = [
        Line(source.name.lower(), _shares(last, source)[: sum(1 for _ in takewhile(lambda n: n >= enough, counts))])
        for source, counts in last.judged.items()
        if counts[0] >= enough
    ]
    panels = {
        "steps that accepted at least k drafted tokens": modes,
        "fused: nodes accepted at depth k, by source": sources,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(draw(panels, POSITIONS), encoding="utf-8")


def main() -> int:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repository", type=Path, default=Path())
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--kind", action="append", choices=list(KINDS))
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--head", help="a folder; default: the head shipped for the model, if any")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--plot", type=Path, help="SVG to write")
    arguments = parser.parse_args()
    settings = Settings.load(
        engine={
            "model": arguments.model,
            "draft_head": str(arguments.head or shipped_head(arguments.model) or "none"),
            "threads": arguments.threads,
            "retained_prefixes": 0,
            "max_running": 1,
            "kv_tokens": 4096,
        },
    )
    folder = ready_model(settings)
    tasks = indexed_tasks(settings, folder, arguments.repository, arguments.kind, arguments.prompts).tasks
    target = load_target(settings)
    modes = {mode: ObservedDrafter(drafter) for mode, drafter in draft_modes(target).items()}
    rows = mode_rows(
        asyncio.run(run_modes(target, settings, modes, tasks, repository=str(arguments.repository.resolve())))
    )
    print("| kind | mode | tokens/step | drafted/step | tok/s of plain |\n| --- | --- | --- | --- | --- |")
    for row in rows:
        figures = f"{row.tokens_per_step:.2f} | {row.drafted_per_step:.1f} | {row.of_plain:.2f}"
        print(f"| {row.kind} | {row.mode} | {figures} |")
    observed = {mode: drafter.observed for mode, drafter in modes.items() if mode != PLAIN}
    report(observed)
    if arguments.plot:
        plot(observed, arguments.plot)
    identical = all(row.identical == row.requests for row in rows)
    print("\ntexts identical" if identical else "\nTEXTS DIFFER")
    return 0 if identical else 1


if __name__ == "__main__":
    sys.exit(main())
