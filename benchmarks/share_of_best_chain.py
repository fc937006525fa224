"""How much of the best chain drafts reach on the development split and on other repositories, and how sure that is.

Other edits hold more or less to copy, so tokens per step are compared in relation to the harness's best chain:

    python replay.py --drafter replay_adapter:AgentspecLean,tradeoff:At31,... --out DEVELOPMENT.jsonl
    python replay.py --traces OTHERS.npz --drafter replay_adapter:AgentspecLean,tradeoff:At31,... --out OTHERS.jsonl
    PYTHONPATH=HARNESS:benchmarks python benchmarks/share_of_best_chain.py \
        --development DEVELOPMENT.jsonl BOUND.jsonl --others OTHERS.jsonl OTHERS-BOUND.jsonl

with `bound-256-repo` among each side's drafters. The interval says what other repositories, and other edits of them,
might have given: both are drawn anew, with replacement, on both sides. Where the others' result lines hold budgets of
`tradeoff.py`, the last table compares each setting with the point of that curve at which as many nodes per step are
drafted and not accepted: where copies are longer, equal numbers of drafted nodes would mean that drafts are cut short.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from traces import SETS  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from numpy.typing import NDArray

SEED = 4
RESAMPLES = 2000
INTERVAL = (0.025, 0.975)
CURVE = re.compile(r"agentspec-\d+")
"""Names of `tradeoff.py`'s budgets."""


class Sums(NamedTuple):
    """Over some streams of one set.

    Attributes:
        tokens: of the recorded outputs.
        steps: it took.
        drafted: nodes in all.
        chain_steps: that the best chain took for the same streams.
    """

    tokens: float
    steps: float
    drafted: float
    chain_steps: float

    @property
    def share(self) -> float:
        """Tokens per step in relation to the best chain's."""
        return self.chain_steps / self.steps

    @property
    def wasted(self) -> float:
        """Nodes per step that were not accepted; every token but one a step was a node."""
        return (self.drafted - self.tokens) / self.steps + 1


Repositories = list["NDArray[np.float64]"]
"""`[streams, len(Sums)]` of each repository."""


def read(files: list[Path], chain: str) -> dict[tuple[str, str], Repositories]:
    """What each repository's streams gave, by drafter and set."""
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    chains = {(line["set"], line["id"]): line["steps"] for line in lines if line["drafter"] == chain}
    found: dict[tuple[str, str], dict[str, list[Sums]]] = {}
    for line in lines:
        if line["drafter"] == chain:
            continue
        sums = Sums(line["tokens"], line["steps"], line["drafted"], chains[line["set"], line["id"]])
        found.setdefault((line["drafter"], line["set"]), {}).setdefault(line["repo"], []).append(sums)
    return {key: [np.array(streams, float) for streams in of.values()] for key, of in found.items()}


def pooled(repositories: Repositories) -> Sums:
    """All streams together."""
    return Sums(*np.concatenate(repositories).sum(0))


def drawn(repositories: Repositories, draw: np.random.Generator) -> Sums:
    """Repositories drawn with replacement, and streams of each of them."""
    picked = [repositories[number] for number in draw.integers(len(repositories), size=len(repositories))]
    return pooled([streams[draw.integers(len(streams), size=len(streams))] for streams in picked])


def compared(development: Repositories, others: Repositories) -> str:
    """Both shares, their difference, and its interval."""
    draw = np.random.default_rng(SEED)
    here, there = pooled(development).share, pooled(others).share
    ratios = [drawn(others, draw).share / drawn(development, draw).share for _ in range(RESAMPLES)]
    low, high = 100 * (np.quantile(ratios, INTERVAL) - 1)
    return f"{here:.2f} / {there:.2f} ({100 * (there / here - 1):+.1f} %; {low:+.0f} to {high:+.0f})"


def at_equal_waste(development: Repositories, curve: list[Sums]) -> str:
    """The share, and the one on `curve` where as many nodes per step are wasted."""
    here = pooled(development)
    points = sorted((point.wasted, point.share) for point in curve)
    if not points[0][0] <= here.wasted <= points[-1][0]:
        return "-"
    there = float(np.interp(here.wasted, [wasted for wasted, _ in points], [share for _, share in points]))
    return f"{here.share:.2f} / {there:.2f} ({100 * (there / here.share - 1):+.1f} %)"


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for side in ("development", "others"):
        parser.add_argument(
            f"--{side}", type=Path, nargs="+", required=True, help="result lines of the harness, .jsonl"
        )
    parser.add_argument("--chain", default="bound-256-repo", help="the drafter whose tokens per step are the measure")
    arguments = parser.parse_args()
    development, others = read(arguments.development, arguments.chain), read(arguments.others, arguments.chain)
    drafters = [name for name in dict.fromkeys(name for name, _ in development) if (name, SETS[0]) in others]
    heading = "| " + " | ".join(SETS) + " |\n|---" + "|---" * len(SETS) + "|"
    print(f"| development / others (difference; 95 % interval) {heading}")
    for drafter in drafters:
        cells = [compared(development[drafter, name], others[drafter, name]) for name in SETS]
        print(f"| {drafter} | " + " | ".join(cells) + " |")
    curves = [
        [pooled(of) for (name, key), of in others.items() if key == set_ and CURVE.fullmatch(name)] for set_ in SETS
    ]
    if not all(curves):
        return
    print(f"\n| at equally many wasted nodes {heading}")
    for drafter in drafters:
        cells = [at_equal_waste(development[drafter, name], curve) for name, curve in zip(SETS, curves, strict=True)]
        print(f"| {drafter} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
