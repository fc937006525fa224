"""What each part of the model-free draft tree is worth: tokens per verify step with the part left out.

Needs the replay harness and this folder on PYTHONPATH and the environment of `replay_adapter`:

    PYTHONPATH=HARNESS:benchmarks python benchmarks/ablations.py --traces TRACES.npz --index SCRATCH --every 4

Every variant is replayed at several budgets and compared at equal nodes per step (between two budgets, the logarithm of
tokens is read off on a line over the logarithm of nodes). Left-out parts are not made up for by another fit.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
from fit_weights import accepted, neutral_weights, snapshot_of  # type: ignore[import-not-found]
from replay_adapter import MAX_NODES, Steady, codec, drafter_for, fold_of, fold_weights  # type: ignore[import-not-found]
from traces import SETS, Traces  # type: ignore[import-not-found]

from agentspec.drafters import _native, formats
from agentspec.drafters.base import DraftRequest
from agentspec.drafters.edit_material import EditMaterial, FormatWords, VocabularyMaterial
from agentspec.drafters.tree import ROOT, DraftTree
from agentspec.drafters.tree_drafter import TreeDrafter

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from agentspec.drafters.base import TextCodec

SCALES = (6, 20, 60, 180)
"""Budgets: a step over this many nodes costs twice a plain one."""
NODES = dict.fromkeys(SETS, 12.0) | {"whole-human": 40.0, "whole-agent": 40.0}
"""Nodes per step at which variants are compared."""
TOKEN_NOTES = slice(_native.NODE_FEATURES + 14, _native.NODE_FEATURES + 16)
"""Features that say whether a token was drafted in vain or came instead of a draft, see `native/proposals.cpp`."""


def nothing() -> NDArray[np.int32]:
    """No tokens."""
    return np.empty(0, np.int32)


@dataclass(frozen=True)
class Variant:
    """One row of the table.

    Attributes:
        patches: makes what leaves the part out, `unittest.mock` patches.
        chain: only the likeliest path of each tree is verified.
        repository: whether requests name the repository.
        drafter: makes the drafter for a fold; None: the fitted one.
    """

    patches: Callable[[], list[Any]] = list
    chain: bool = False
    repository: bool = True
    drafter: Callable[[int], TreeDrafter] | None = None


def without_words(self: EditMaterial) -> FormatWords:
    """Markers without the words around them."""
    return FormatWords(_native.IndexedText(nothing()), (None,) * len(self.formats.pairs), None)


def blind_to(features: slice, fold: int) -> _native.Ranker:
    """The ranker of a fold as if these features were always 0."""
    weights = fold_weights(fold)
    weights["hidden"][features] = 0
    return _native.Ranker(weights)


with_sentences = VocabularyMaterial.__init__


def without_sentences(self: VocabularyMaterial, tokenizer: TextCodec) -> None:
    """What is the same for all requests, without `prose.txt`."""
    with_sentences(self, tokenizer)
    self.prose = _native.IndexedText(nothing())


VARIANTS: dict[str, Variant] = {
    "everything": Variant(),
    "a chain instead of a tree": Variant(chain=True),
    "weights before fitting": Variant(drafter=lambda _: TreeDrafter(_native.Ranker(neutral_weights()))),
    "repository": Variant(repository=False),
    "formats' words": Variant(lambda: [patch.object(EditMaterial, "words", without_words)]),
    "echoes": Variant(lambda: [patch.object(formats, "_pairs", lambda: iter(()))]),
    "escaped views": Variant(lambda: [patch.object(EditMaterial, "views", lambda _: [])]),
    "what a request showed of tokens": Variant(drafter=lambda fold: TreeDrafter(blind_to(TOKEN_NOTES, fold))),
    "assistants' sentences": Variant(lambda: [patch.object(VocabularyMaterial, "__init__", without_sentences)]),
}
"""The parts, by what is left out."""


@dataclass
class Count:
    """Sums over the streams of a set."""

    tokens: int = 0
    steps: int = 0
    nodes: int = 0


@dataclass
class Table:
    """Counts by set and scale of one variant."""

    counts: dict[tuple[str, int], Count] = field(default_factory=dict)

    def tokens_per_step(self, name: str, nodes: float) -> float:
        """At this many nodes per step; not a number outside of what the budgets reached."""
        reached = sorted(
            (count.nodes / count.steps, count.tokens / count.steps)
            for (of, _), count in self.counts.items()
            if of == name
        )
        x, y = np.log([point[0] for point in reached]), np.log([point[1] for point in reached])
        return float(np.exp(np.interp(np.log(nodes), x, y, left=np.nan, right=np.nan)))


def best_path(tree: DraftTree) -> DraftTree:
    """The chain that begins with the likeliest node and goes on with the likeliest child."""
    kept: list[int] = []
    parent = ROOT
    while True:
        children = np.flatnonzero(tree.parents == parent)
        if not len(children):
            break
        parent = int(children[np.argmax(tree.prob[children])])
        kept.append(parent)
    chain = np.arange(-1, len(kept) - 1, dtype=np.int32)
    return DraftTree(tree.tokens[kept], chain, tree.prob[kept], tree.source[kept])


def replay(traces: Any, folder: Path, numbers: list[int], variant: Variant) -> Table:
    """One variant over the streams."""
    table, drafters = Table(), {}
    for number in numbers:
        meta, output = traces.meta[number], traces.outputs[number]
        fold = fold_of(meta["id"])
        if fold not in drafters:
            drafters[fold] = (variant.drafter or drafter_for.__wrapped__)(fold)
        snapshot = snapshot_of(traces, number, folder) if variant.repository else None
        request = DraftRequest(traces.prompts[number], snapshot, meta["path"], codec=codec())
        for scale in SCALES:
            session, budget = drafters[fold].begin(request), Steady(scale, MAX_NODES).budget()
            count, at = table.counts.setdefault((meta["set"], scale), Count()), 0
            while at < len(output):
                tree = session.propose(budget)
                if variant.chain:
                    tree = best_path(tree)
                taken = output[at : at + accepted(tree, output[at:]) + 1]
                session.commit(taken)
                at += len(taken)
                count.steps += 1
                count.nodes += len(tree)
            count.tokens += len(output)
    return table


def main() -> None:
    """Print the table: tokens per step with everything, and what leaving a part out loses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True, help="the harness's token cache, .npz")
    parser.add_argument("--index", type=Path, required=True, help="folder of the streams' indexes")
    parser.add_argument("--every", type=int, default=1, help="only every so many streams of each set")
    parser.add_argument("--only", choices=VARIANTS, help="one variant alone, tokens per step")
    arguments = parser.parse_args()
    traces = Traces(str(arguments.traces))
    numbers = [n for name in SETS for n in traces.select([name])[:: arguments.every]]
    print("| left out | " + " | ".join(f"{name} at {NODES[name]:.0f}" for name in SETS) + " |")
    print("|---" * (len(SETS) + 1) + "|")
    whole: Table | None = None
    for label, variant in VARIANTS.items():
        if arguments.only not in {None, label}:
            continue
        with ExitStack() as stack:
            for one in variant.patches():
                stack.enter_context(one)
            table = replay(traces, arguments.index, numbers, variant)
        reached = [table.tokens_per_step(name, NODES[name]) for name in SETS]
        if whole is None:
            whole = table
            cells = [f"{value:.2f}" for value in reached]
        else:
            lost = zip((whole.tokens_per_step(name, NODES[name]) for name in SETS), reached, strict=True)
            cells = ["-" if np.isnan(after) else f"{after - before:+.2f}" for before, after in lost]
        print(f"| {label} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
