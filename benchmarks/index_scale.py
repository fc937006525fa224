"""What a growing index costs: build rate, bytes per token, private memory, and the time of a drafting step.

    agentspec bench replay --git REPOSITORY --limit 12 --save traces.npz
    python benchmarks/index_scale.py --traces traces.npz --work /tmp/scale --roots /usr ~/.pyenv --plot curve.svg

The index grows by source files found below --roots, each content once, beside the repositories of the traces that are
replayed against it. Times of a step are the least disturbed of --runs runs. Building is timed in CPU time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from latency import MICROSECONDS, follow, least  # type: ignore[import-not-found]
from real_files import SEPARATOR, tokenised  # type: ignore[import-not-found]
from replay_adapter import BUDGETS  # type: ignore[import-not-found]

from agentspec.benchmarking.codec import FileCodec
from agentspec.benchmarking.traces import load_traces
from agentspec.cli.machine import cpu_name
from agentspec.cli.ready_model import ready_model
from agentspec.config import Settings
from agentspec.drafters.base import DraftRequest
from agentspec.drafters.tree_drafter import TreeDrafter
from agentspec.index.manifest import TokenizerIdentity
from agentspec.index.segment import IndexedDocument
from agentspec.index.store import IndexStore
from agentspec.index.writer import open_writer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from agentspec.benchmarking.traces import Trace

MILLION = 1_000_000
FIGURES = (
    ("tokens", "million_tokens", "{:.1f} M"),
    ("bytes per token", "bytes_per_token", "{:.2f}"),
    ("built, M tokens/s", "million_tokens_per_second", "{:.1f}"),
    ("private, MB", "private_megabytes", "{:.1f}"),
    ("lean p50, µs", "agentspec-lean_p50", "{:.0f}"),
    ("lean p99, µs", "agentspec-lean_p99", "{:.0f}"),
    ("wide p50, µs", "agentspec-wide_p50", "{:.0f}"),
    ("wide p99, µs", "agentspec-wide_p99", "{:.0f}"),
)
"""Columns of the table: heading, name in the figures, how it is written."""


def main() -> None:
    """Build an index of each size and measure it in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True, help="written by agentspec bench replay --save")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json (default: the default model's)")
    parser.add_argument("--roots", type=Path, nargs="*", default=[Path("/usr")], help="where source files are taken")
    parser.add_argument("--work", type=Path, required=True, help="folder for the tokens (kept) and the indexes (not)")
    parser.add_argument("--sizes", type=float, nargs="*", default=[1, 3, 10, 30, 100], help="million tokens")
    parser.add_argument("--runs", type=int, default=3, help="runs of each trace")
    parser.add_argument("--plot", type=Path, help="write the curve here, as SVG")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    tokenizer = options.tokenizer or ready_model(Settings()) / "tokenizer.json"
    traces = load_traces(options.traces).traces
    if options.measure:
        print(json.dumps(measure(IndexStore(options.measure), traces, FileCodec.load(tokenizer), options.runs)))
        return
    options.work.mkdir(parents=True, exist_ok=True)
    growth = tokenised(options.roots, tokenizer, int(max(options.sizes) * MILLION), options.work / "growth.tokens")
    print(f"{cpu_name()}; {len(traces)} traces, {options.runs} runs each", flush=True)
    print("| " + " | ".join(heading for heading, _, _ in FIGURES) + " |\n" + "|---" * len(FIGURES) + "|", flush=True)
    rows = []
    for size in options.sizes:
        folder = options.work / "index"
        figures = build(folder, traces, growth, int(size * MILLION))
        command = [sys.executable, __file__, *sys.argv[1:], "--measure", str(folder)]
        figures |= json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        shutil.rmtree(folder)
        rows.append(figures)
        print("| " + " | ".join(form.format(figures[name]) for _, name, form in FIGURES) + " |", flush=True)
    if options.plot:
        options.plot.write_text(plot(rows))


def build(folder: Path, traces: tuple[Trace, ...], growth: NDArray[np.int32], tokens: int) -> dict[str, float]:
    """Publish the traces' repositories and as much of `growth` as makes `tokens`; what that took."""
    documents = {document.blob: document for document in _documents(traces, growth, tokens)}
    files = {blob.hex().encode(): blob for blob in documents}
    largest = max(int(document.tokens.max(initial=0)) for document in documents.values())
    identity = TokenizerIdentity(name="scale", fingerprint="scale", vocabulary_size=largest + 1)
    start = time.process_time()
    with open_writer(IndexStore(folder), identity, marks="none") as writer:
        manifest = writer.publish(folder, files, list(documents.values()), {})
    seconds = time.process_time() - start
    total = sum(segment.tokens for segment in manifest.segments)
    size = sum(file.stat().st_size for file in folder.iterdir())
    return {
        "million_tokens": total / MILLION,
        "bytes_per_token": size / total,
        "million_tokens_per_second": total / MILLION / seconds,
    }


def measure(store: IndexStore, traces: tuple[Trace, ...], codec: FileCodec, runs: int) -> dict[str, float]:
    """Times of a step by budget, and what opening and drafting from the index added to private memory."""
    drafter = TreeDrafter()
    before = private_bytes()
    snapshot = store.current()
    figures: dict[str, Any] = {}
    times: dict[str, list[NDArray[np.float64]]] = {name: [] for name in ("agentspec-lean", "agentspec-wide")}
    opened = private_bytes()
    for trace in traces:
        request = DraftRequest(trace.prompt, snapshot, document_name(trace.documents[-1].tokens), codec=codec)
        for name, seconds in times.items():
            seconds.append(least([follow(drafter, request, trace.output, BUDGETS[name]) for _ in range(runs)]))
    for name, seconds in times.items():
        median, high = np.percentile(np.concatenate(seconds) * MICROSECONDS, (50, 99))
        figures |= {f"{name}_p50": median, f"{name}_p99": high}
    return figures | {"private_megabytes": (opened - before) / MILLION}


def private_bytes() -> int:
    """Memory of this process that no file backs."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("RssAnon")))


def document_name(tokens: NDArray[np.int32]) -> str:
    """The path under which `build` publishes a document."""
    return hashlib.sha1(np.ascontiguousarray(tokens).tobytes(), usedforsecurity=False).hexdigest()


def _documents(traces: tuple[Trace, ...], growth: NDArray[np.int32], tokens: int) -> Iterator[IndexedDocument]:
    own = {id(document): document.tokens for trace in traces for document in trace.documents}
    yield from map(_document, own.values())
    left = max(tokens - sum(map(len, own.values())), 0)
    start = 0
    ends = np.flatnonzero(growth[:left] == SEPARATOR).tolist()
    for end in ends:
        yield _document(growth[start:end])
        start = end + 1


def _document(tokens: NDArray[np.int32]) -> IndexedDocument:
    return IndexedDocument(bytes.fromhex(document_name(tokens)), tokens, np.zeros(len(tokens), np.bool_))


WIDTH, HEIGHT, MARGIN = 560, 260, 46


def plot(rows: list[dict[str, float]]) -> str:
    """The medians over the size of the index, as SVG; sizes on a logarithmic axis."""
    sizes = np.log10([row["million_tokens"] for row in rows])
    top = 1.2 * max(row["agentspec-wide_p50"] for row in rows)

    def x(size: float) -> float:
        return float(MARGIN + (size - sizes[0]) / max(sizes[-1] - sizes[0], 1e-9) * (WIDTH - 2 * MARGIN))

    def y(value: float) -> float:
        return HEIGHT - MARGIN - value / top * (HEIGHT - 2 * MARGIN)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="11">'
    ]
    parts.append(f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>')
    for value in range(0, int(top) + 1, 10):
        parts.append(f'<path d="M{MARGIN} {y(value):.1f}H{WIDTH - MARGIN}" stroke="#ddd"/>')
        parts.append(f'<text x="{MARGIN - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value}</text>')
    for size, row in zip(sizes, rows, strict=True):
        label = f"{row['million_tokens']:.0f} M"
        parts.append(f'<text x="{x(size):.1f}" y="{HEIGHT - MARGIN + 16}" text-anchor="middle">{label}</text>')
    for name, colour in (("agentspec-lean", "#0b6e99"), ("agentspec-wide", "#c4554d")):
        points = [(x(size), y(row[f"{name}_p50"])) for size, row in zip(sizes, rows, strict=True)]
        path = " ".join(f"{left:.1f},{up:.1f}" for left, up in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{left:.1f}" cy="{up:.1f}" r="3" fill="{colour}"/>' for left, up in points]
        parts.append(
            f'<text x="{points[-1][0]:.1f}" y="{points[-1][1] - 8:.1f}" text-anchor="end" fill="{colour}">'
            f"{name.removeprefix('agentspec-')}</text>"
        )
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle">tokens in the index</text>')
    parts.append(f'<text x="{MARGIN}" y="16">propose and commit, median, µs</text></svg>\n')
    return "\n".join(parts)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
