"""Tokens per step against drafted nodes per step on the replay harness's sets: agentspec's budgets beside its peers.

Each budget is a drafter of the harness; its result lines and the peers' become one table and one picture:

    PYTHONPATH=../benchmarks python replay.py --drafter tradeoff:At8,tradeoff:At17,tradeoff:At31 --out ours.jsonl
    PYTHONPATH=HARNESS:benchmarks python benchmarks/tradeoff.py ours.jsonl peers.jsonl --plot OUT.svg

with the environment of `replay_adapter`. Only streams that every drafter followed count.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from replay_adapter import MAX_NODES, ReplayDrafter, Steady  # type: ignore[import-not-found]
from traces import SETS  # type: ignore[import-not-found]

from agentspec.benchmarking.tradeoff_plot import Setting, draw

CURVES = {
    "agentspec-wide": "agentspec, by the request's pace",
    "agentspec": "agentspec",
    "arctic": "Arctic suffix decoding",
    "sglang": "SGLang n-gram",
    "hf-pld": "prompt lookup",
}
"""What drafters are called in the picture, by how their names begin."""


def _at(nodes: int) -> ReplayDrafter:
    return ReplayDrafter(f"agentspec-{nodes}", partial(Steady, nodes, MAX_NODES))


At8, At17, At31, At70, At200 = (partial(_at, nodes) for nodes in (8, 17, 31, 70, 200))
"""A step over so many drafted nodes costs twice a plain one."""


class Pooled(NamedTuple):
    """Sums over the streams of a set.

    Attributes:
        tokens: of the recorded outputs.
        steps: it took.
        drafted: nodes in all.
    """

    tokens: int
    steps: int
    drafted: int

    @property
    def rate(self) -> float:
        """Tokens per step."""
        return self.tokens / self.steps

    @property
    def nodes(self) -> float:
        """Drafted nodes per step."""
        return self.drafted / self.steps


def pooled(files: list[Path]) -> dict[str, dict[str, Pooled]]:
    """By set and drafter, over the streams that every drafter followed."""
    lines: dict[str, dict[str, dict[str, Any]]] = {}
    for file in files:
        for line in map(json.loads, file.read_text().splitlines()):
            lines.setdefault(line["set"], {}).setdefault(line["drafter"], {})[line["id"]] = line
    sums: dict[str, dict[str, Pooled]] = {}
    for name in (name for name in SETS if name in lines):
        common = set.intersection(*(set(of_drafter) for of_drafter in lines[name].values()))
        print(f"{name}: {len(common)} streams")
        sums[name] = {
            drafter: Pooled(*(sum(of_drafter[key][count] for key in common) for count in Pooled._fields))
            for drafter, of_drafter in lines[name].items()
        }
    return sums


def print_table(sums: dict[str, dict[str, Pooled]], relative_to: str | None) -> None:
    """One line per drafter; each cell says tokens and nodes per step."""

    def cell(of_set: dict[str, Pooled], drafter: str) -> str:
        one = of_set[drafter]
        ratio = f" = {one.rate / of_set[relative_to].rate:.2f}" if relative_to else ""
        return f"{one.rate:.2f} at {one.nodes:.1f}{ratio}"

    print("| drafter | " + " | ".join(sums) + " |\n|---" + "|---" * len(sums) + "|")
    for drafter in next(iter(sums.values())):
        print(f"| {drafter} | " + " | ".join(cell(of_set, drafter) for of_set in sums.values()) + " |")


def curve_of(drafter: str) -> str:
    """What a drafter's curve is called."""
    return next((name for start, name in CURVES.items() if drafter.startswith(start)), drafter)


def main() -> None:
    """Print the table and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", help="result lines of the harness, .jsonl")
    parser.add_argument("--relative-to", help="a drafter whose tokens per step the others' are divided by")
    parser.add_argument("--plot", type=Path, help="the picture, .svg")
    arguments = parser.parse_args()
    sums = pooled(arguments.files)
    print_table(sums, arguments.relative_to)
    if arguments.plot:
        panels: dict[str, dict[str, list[Setting]]] = {}
        for name, of_set in sums.items():
            for drafter, one in of_set.items():
                settings = panels.setdefault(name, {}).setdefault(curve_of(drafter), [])
                settings.append(Setting(one.nodes, one.rate, drafter))
        arguments.plot.write_text(ElementTree.tostring(draw(panels), encoding="unicode") + "\n")


if __name__ == "__main__":
    main()
