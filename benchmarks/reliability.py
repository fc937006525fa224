"""Predicted against observed acceptance of drafted nodes, as a table and a picture.

Needs the replay harness and this folder on PYTHONPATH and the environment of `replay_adapter`:

    PYTHONPATH=HARNESS:benchmarks python benchmarks/reliability.py --traces TRACES.npz --index SCRATCH --plot OUT.svg

A node is judged when its parent was accepted: its probability was then right or wrong by what the target said next.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from acceptance_plot import Line, draw  # type: ignore[import-not-found]
from fit_weights import snapshot_of  # type: ignore[import-not-found]
from replay_adapter import MAX_NODES, Steady, codec, drafter_for, fold_of  # type: ignore[import-not-found]
from traces import SETS, Traces  # type: ignore[import-not-found]

from agentspec.drafters.base import DraftRequest
from agentspec.drafters.tree import ROOT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from agentspec.drafters.tree import DraftTree

SCALE = 150
"""The budget: a step over so many nodes costs twice a plain one."""
DEPTHS = {"first tokens": (1, 1), "2 to 8 deep": (2, 8), "9 to 64 deep": (9, 64), "deeper": (65, 256)}
BINS = 10


class Reliability:
    """Sums of predicted and observed acceptance by band of depth and bin of probability.

    Attributes:
        judged: `int64[D, B]`, nodes.
        predicted: `float64[D, B]`, the sum of their probabilities.
        accepted: `int64[D, B]`, how many were right.
    """

    def __init__(self) -> None:
        shape = (len(DEPTHS), BINS)
        self.judged: NDArray[np.int64] = np.zeros(shape, np.int64)
        self.predicted: NDArray[np.float64] = np.zeros(shape, np.float64)
        self.accepted: NDArray[np.int64] = np.zeros(shape, np.int64)

    def add(self, tree: DraftTree, path: list[int]) -> None:
        """Judge a tree of which `path` was accepted."""
        right = np.isin(np.arange(len(tree)), path)
        judged = np.isin(tree.parents, [ROOT, *path])
        depth, bins = tree.depths(), np.minimum((tree.prob * BINS).astype(int), BINS - 1)
        for band, (first, last) in enumerate(DEPTHS.values()):
            of_band = judged & (depth >= first) & (depth <= last)
            np.add.at(self.judged[band], bins[of_band], 1)
            np.add.at(self.predicted[band], bins[of_band], tree.prob[of_band])
            np.add.at(self.accepted[band], bins[of_band], right[of_band])

    def shares(self, sums: NDArray[Any]) -> NDArray[np.float64]:
        """`float64[D, B]`: per judged node; 0 where there is none."""
        return np.asarray(sums / np.maximum(self.judged, 1), np.float64)


def main() -> None:
    """Print the table by band of depth and draw it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True, help="the harness's token cache, .npz")
    parser.add_argument("--index", type=Path, required=True, help="folder of the streams' indexes")
    parser.add_argument("--every", type=int, default=1, help="only every so many streams of each set")
    parser.add_argument("--plot", type=Path, required=True, help="the picture, .svg")
    arguments = parser.parse_args()
    traces, seen = Traces(str(arguments.traces)), Reliability()
    budget = Steady(SCALE, MAX_NODES).budget()
    for number in [n for name in SETS for n in traces.select([name])[:: arguments.every]]:
        meta, output, at = traces.meta[number], traces.outputs[number], 0
        request = DraftRequest(
            traces.prompts[number], snapshot_of(traces, number, arguments.index), meta["path"], codec=codec()
        )
        session = drafter_for(fold_of(meta["id"])).begin(request)
        while at < len(output):
            tree = session.propose(budget)
            path = tree.accepted_path(output[at : at + MAX_NODES + 1].tolist())
            seen.add(tree, path)
            session.commit(output[at : at + len(path) + 1])
            at += len(path) + 1
    predicted, observed = seen.shares(seen.predicted), seen.shares(seen.accepted)
    print("| depth | " + " | ".join(f"{i / BINS:.1f}-{(i + 1) / BINS:.1f}" for i in range(BINS)) + " |")
    print("|---" * (BINS + 1) + "|")
    for band, name in enumerate(DEPTHS):
        cells = [f"{p:.3f} / {o:.3f}" for p, o in zip(predicted[band], observed[band], strict=True)]
        print(f"| {name}: {seen.judged[band].sum()} nodes | " + " | ".join(cells) + " |")
    panels = {
        name: [Line("predicted", predicted[band].tolist()), Line("observed", observed[band].tolist())]
        for band, name in enumerate(DEPTHS)
    }
    arguments.plot.write_text(draw(panels, BINS))


if __name__ == "__main__":
    main()
