"""Several drafters on the same traces: who gets how many tokens out of a step, and at how many drafted nodes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from agentspec.benchmarking.baselines import BASELINES
from agentspec.benchmarking.formats import FORMATS
from agentspec.benchmarking.peers import PEERS, installed_peers
from agentspec.benchmarking.replay import ReplayResult, ReplaySummary, replay, summarise
from agentspec.benchmarking.repository import indexed
from agentspec.drafters.base import Budget, DraftRequest
from agentspec.drafters.tree_drafter import TreeDrafter
from agentspec.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from agentspec.benchmarking.traces import Trace
    from agentspec.drafters.base import Drafter, TextCodec

CHAIN_LENGTHS = (4, 10, 24, 64)
"""Drafted tokens at which the baselines and the peers are tried."""
DOUBLED_AT = (8, 17, 31, 70, 200)
"""Costs at which the tree drafter is tried: a verify step over so many drafted nodes takes twice a plain one's time."""
TREE_CAP = 256
"""Most nodes, and greatest depth, of a draft tree here."""
LEAST_PATH_PROBABILITY = 0.005
"""Nodes below it are drafted at no cost."""
NODE_LIMITS = (16, 64)
"""Drafted nodes that the tree drafter is held to, whatever they cost, and up to which the overview looks."""


HEADINGS = ("tokens/step", "drafted/step", "p50 µs", "p99 µs", "begin ms")
"""Of `ComparisonRow.figures`: the percentiles are of `propose` plus `commit`, the last one is the median of `begin`."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A drafter at one setting.

    Attributes:
        name: of the drafter.
        setting: of the budget, for people.
        drafter: who proposes.
        budget: of every step.
    """

    name: str
    setting: str
    drafter: Drafter
    budget: Budget


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """What one contender did on all traces of one format.

    Attributes:
        format: of the edits.
        drafter: name of the drafter.
        setting: of its budget.
        summary: pooled figures.
    """

    format: str
    drafter: str
    setting: str
    summary: ReplaySummary

    def figures(self) -> tuple[str, ...]:
        """The figures for people, in the order of `HEADINGS`."""
        summary = self.summary
        return (
            f"{summary.tokens_per_step:.2f}",
            f"{summary.drafted_per_step:.1f}",
            f"{summary.step_p50 * 1e6:.0f}",
            f"{summary.step_p99 * 1e6:.0f}",
            f"{summary.begin_p50 * 1e3:.1f}",
        )

    def in_brief(self) -> str:
        """Tokens per step, and drafted nodes in brackets."""
        return f"{self.summary.tokens_per_step:.2f} ({self.summary.drafted_per_step:.0f})"


def contenders(names: Sequence[str]) -> list[Contender]:
    """The drafters of these names, each at every setting that it is tried at.

    Raises:
        InvalidRequestError: a name is unknown.
    """
    known = ("agentspec", *BASELINES, *PEERS)
    found: list[Contender] = []
    for name in names:
        if name not in known:
            raise InvalidRequestError(f"unknown drafter {name!r}; known are {', '.join(known)}")
        if name == "agentspec":
            tree_drafter = TreeDrafter()
            found += [Contender(name, f"twice at {nodes}", tree_drafter, _budget(nodes)) for nodes in DOUBLED_AT]
            found += [
                Contender(name, f"{nodes} nodes", tree_drafter, _budget(DOUBLED_AT[-1], nodes)) for nodes in NODE_LIMITS
            ]
        elif name == "none":
            found.append(Contender(name, "", BASELINES[name], Budget()))
        else:
            drafter = BASELINES[name] if name in BASELINES else _peer(name)
            found += [Contender(name, f"{length} tokens", drafter, Budget(length, length)) for length in CHAIN_LENGTHS]
    return found


def _budget(doubled_at: int, most_nodes: int = TREE_CAP) -> Budget:
    cost = (1 + np.arange(most_nodes + 1) / doubled_at).astype(np.float32)
    return Budget(most_nodes, most_nodes, LEAST_PATH_PROBABILITY, cost)


def _peer(name: str) -> Drafter:
    package, make = PEERS[name]
    if name not in installed_peers():
        raise InvalidRequestError(f"drafter {name!r} needs the package {package}, which is not installed")
    return make()


def compare(
    traces: Sequence[Trace],
    field: Sequence[Contender],
    codec: TextCodec | None = None,
    progress: Callable[[], None] = lambda: None,
) -> list[ComparisonRow]:
    """Replay every trace against every contender.

    Args:
        traces: those of one repository state side by side, as `build_traces` gives them.
        field: the contenders.
        codec: the traces' tokenizer, for drafters that read text.
        progress: called after each trace.

    Returns:
        Rows by format in the order of `FORMATS`, then by contender.
    """
    results: dict[tuple[str, int], list[ReplayResult]] = {}
    vocabulary_size = 1 + max((int(stream.max(initial=0)) for trace in traces for stream in _streams(trace)), default=0)
    for _, group in groupby(traces, key=lambda trace: tuple(map(id, trace.documents))):
        members = list(group)
        with indexed(members[0].documents, vocabulary_size) as snapshot:
            for trace in members:
                request = DraftRequest(trace.prompt, repository=snapshot, edited_path=trace.path, codec=codec)
                for number, contender in enumerate(field):
                    result = replay(contender.drafter, request, trace.output, contender.budget)
                    results.setdefault((trace.format, number), []).append(result)
                progress()
    return [
        ComparisonRow(name, field[number].name, field[number].setting, summarise(pooled))
        for name in dict.fromkeys((*FORMATS, *(trace.format for trace in traces)))
        for number in range(len(field))
        if (pooled := results.get((name, number)))
    ]


def overview_heading(nodes: int) -> str:
    """What stands over the `overview` of settings with at most `nodes` drafted nodes per step."""
    return f"Most tokens per step with at most {nodes} drafted nodes per step (nodes taken)"


def overview(rows: Sequence[ComparisonRow], nodes: int) -> dict[str, dict[str, ComparisonRow]]:
    """By drafter and format, the row with most tokens per step among those with at most `nodes` drafted per step.

    Args:
        rows: of `compare`.
        nodes: one of `NODE_LIMITS`; every drafter has a setting that keeps to it.
    """
    best: dict[str, dict[str, ComparisonRow]] = {}
    for row in rows:
        if row.summary.drafted_per_step <= nodes:
            of_drafter = best.setdefault(row.drafter, {})
            known = of_drafter.setdefault(row.format, row)
            if row.summary.tokens_per_step > known.summary.tokens_per_step:
                of_drafter[row.format] = row
    return best


def frontier(rows: Sequence[ComparisonRow]) -> list[ComparisonRow]:
    """The settings of one drafter for one format that no other one beats, with fewer nodes first."""
    found: list[ComparisonRow] = []
    for row in sorted(rows, key=lambda row: row.summary.drafted_per_step):
        if not found or row.summary.tokens_per_step > found[-1].summary.tokens_per_step:
            found.append(row)
    return found


def _streams(trace: Trace) -> list[NDArray[np.int32]]:
    return [trace.prompt, trace.output, *(document.tokens for document in trace.documents)]
