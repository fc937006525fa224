"""What drafting costs: beginning a request, and each of its steps, in a repository of a given size.

    agentspec bench replay --git REPOSITORY --limit 12 --save traces.npz
    python benchmarks/draft_latency.py --traces traces.npz

Two times are printed for a step, median and 99th percentile each: "wall" is the clock on the wall of the first run,
whatever else the machine did; "least" takes for each step the least disturbed of several runs, which draft the same.
Beginning a request is timed in processor time.
"""

from __future__ import annotations

import argparse
import time
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from latency import follow, least, percentiles  # type: ignore[import-not-found]
from replay_adapter import BUDGETS  # type: ignore[import-not-found]

from agentspec.benchmarking.codec import FileCodec
from agentspec.benchmarking.repository import indexed
from agentspec.benchmarking.traces import load_traces
from agentspec.cli.machine import cpu_name
from agentspec.cli.ready_model import ready_model
from agentspec.config import Settings
from agentspec.drafters.base import DraftRequest
from agentspec.drafters.tree_drafter import TreeDrafter

if TYPE_CHECKING:
    from latency import Run
    from numpy.typing import NDArray

    from agentspec.benchmarking.traces import Trace
    from agentspec.index.snapshot import Snapshot

LONG_PROMPT = 30_000
"""Tokens of the prompt that `begin` is timed with."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True, help="written by agentspec bench replay --save")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json (default: the default model's)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each trace")
    options = parser.parse_args()
    codec = FileCodec.load(options.tokenizer or ready_model(Settings()))
    traces = load_traces(options.traces).traces
    tokens = np.mean([sum(len(document.tokens) for document in trace.documents) for trace in traces])
    print(f"{cpu_name()}; {len(traces)} traces, {tokens:,.0f} tokens of repository each")

    drafter = TreeDrafter()
    runs: dict[tuple[str, str], list[list[Run]]] = {}
    begins: list[tuple[float, float]] = []
    vocabulary_size = 1 + max(int(document.tokens.max(initial=0)) for t in traces for document in t.documents)
    start = time.perf_counter()
    drafter.begin(DraftRequest(np.array([vocabulary_size - 1], np.int32), codec=codec))
    print(f"once per tokenizer: {time.perf_counter() - start:.2f} s")
    for _, group in groupby(traces, key=lambda trace: tuple(map(id, trace.documents))):
        members = list(group)
        with indexed(members[0].documents, vocabulary_size) as snapshot:
            begins += [time_begin(drafter, trace, snapshot, codec) for trace in members[-1:]]
            for trace in members:
                request = DraftRequest(trace.prompt, snapshot, trace.path, codec=codec)
                for name, make_budgets in BUDGETS.items():
                    repeated = [follow(drafter, request, trace.output, make_budgets) for _ in range(options.runs)]
                    runs.setdefault((name, trace.format), []).append(repeated)
    for name in BUDGETS:
        of_name = {form: found for (other, form), found in runs.items() if other == name}
        for form, found in [*of_name.items(), ("all", [one for many in of_name.values() for one in many])]:
            print_row(name, form, found)
    cold, warm = (np.array(times) * 1e3 for times in zip(*begins, strict=True))
    print(
        f"begin with a prompt of {LONG_PROMPT:,} tokens, ms of processor time: cold (first request for a generation of "
        f"the index) median {np.median(cold):.1f}, most {cold.max():.1f}; "
        f"warm median {np.median(warm):.1f}, most {warm.max():.1f}"
    )


def print_row(name: str, form: str, found: list[list[Run]]) -> None:
    """One line: a budget on the traces of one format."""
    first = [repeated[0] for repeated in found]
    steps = sum(len(run.seconds) for run in first)
    print(
        f"{name:15} {form:15} {steps:6} steps, {sum(run.tokens for run in first) / steps:6.2f} tokens and "
        f"{sum(run.drafted for run in first) / steps:6.1f} nodes per step; "
        f"wall {percentiles(np.concatenate([run.seconds for run in first])):>10} µs, "
        f"least {percentiles(np.concatenate([least(repeated) for repeated in found])):>9} µs"
    )


def time_begin(drafter: TreeDrafter, trace: Trace, snapshot: Snapshot, codec: FileCodec) -> tuple[float, float]:
    """Processor seconds of `begin` with a long prompt: first request for a generation of the index, and the next."""
    request = DraftRequest(long_prompt(trace), snapshot, trace.path, codec=codec)
    times = []
    for _ in range(2):
        start = time.thread_time()
        drafter.begin(request)
        times.append(time.thread_time() - start)
    return times[0], times[1]


def long_prompt(trace: Trace) -> NDArray[np.int32]:
    """`int32[LONG_PROMPT]`: other files of the repository before the trace's own prompt."""
    parts = [trace.prompt]
    for document in trace.documents[:-1]:
        if sum(map(len, parts)) >= LONG_PROMPT:
            break
        parts.insert(0, document.tokens)
    return np.concatenate(parts)[-LONG_PROMPT:]


if __name__ == "__main__":
    main()
