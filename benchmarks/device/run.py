"""One script for a machine with a GPU: are the verify kernels right, and what do they cost?

    python -m benchmarks.device.run --output results/

Needs torch, triton, flashinfer and this repository (and transformers for the cost curve). It stops measuring after
`--minutes`; shapes come in an order that leaves the least important for last, and what was left out is listed.
`--dry-run` goes through everything on a CPU at tiny shapes, to try the script itself; set TRITON_INTERPRET=1 for it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.device.checks import check_all
from benchmarks.device.contenders import applies, contenders
from benchmarks.device.inputs import Shape, random_step
from benchmarks.device.plot import line_plot
from benchmarks.device.timing import Timer, copy_bandwidth

CURVE_SECONDS = 30.0
"""Kept for the cost curve at the end."""


@dataclass(frozen=True, slots=True)
class Programme:
    """What is measured.

    Attributes:
        checked: shapes of the correctness checks.
        timed: shapes that are timed, most important first.
        steps: arguments of `time_steps`.
        copy_bytes: size of the copy that gives the bandwidth.
        repetitions: timed runs of each.
    """

    checked: tuple[Shape, ...]
    timed: tuple[Shape, ...]
    steps: tuple[dict[str, int], ...]
    copy_bytes: int
    repetitions: int


def full_programme() -> Programme:
    """For a GPU."""
    widths, batches = (32, 16, 64, 8, 1), (1, 4, 8)
    contexts = (32_768, 8_192, 131_072, 2_048)
    shapes = [Shape(q, b, c) for c in contexts for b in batches for q in widths if b * c <= 524_288]
    return Programme(
        checked=tuple(
            Shape(q, b, c, heads, 8, dim)
            for q, b, c, heads, dim in (
                (1, 1, 17, 32, 128),
                (8, 3, 300, 32, 128),
                (32, 2, 2_000, 32, 128),
                (64, 1, 33, 32, 128),
                (100, 2, 900, 8, 128),
                (16, 2, 0, 32, 128),
            )
        ),
        timed=tuple(shapes),
        steps=tuple(
            {"batch": b, "width": 32, "vocabulary": 128_256, "layers": 32, "row_elements": 1024} for b in (1, 4)
        ),
        copy_bytes=2 << 30,
        repetitions=15,
    )


def tiny_programme() -> Programme:
    """For the dry run: every path, nothing worth measuring."""
    small = {"heads": 4, "kv_heads": 2, "head_dim": 16}
    return Programme(
        checked=(Shape(1, 1, 5, **small), Shape(6, 2, 30, **small), Shape(70, 1, 0, **small)),
        timed=(Shape(4, 1, 16, **small), Shape(4, 1, 64, **small)),
        steps=({"batch": 2, "width": 4, "vocabulary": 40, "layers": 2, "row_elements": 32},),
        copy_bytes=1 << 16,
        repetitions=2,
    )


@dataclass(slots=True)
class Results:
    """All that was found; written as JSON.

    Attributes:
        machine: device and versions.
        checks: one entry per contender and shape.
        copy_bytes_per_second: measured bandwidth.
        attention: one entry per shape: microseconds by contender, and the share of the bandwidth that each reached.
        fastest: the fastest exact contender by shape, written `width x batch x context`.
        steps: microseconds of mask packing, acceptance and compaction.
        cost_curve: T(n) of the model, or why there is none.
        left_out: shapes for which there was no time or memory, and why.
        dry_run: the figures are those of a CPU at tiny shapes and mean nothing.
    """

    machine: dict[str, str]
    dry_run: bool
    checks: list[dict[str, Any]] = field(default_factory=list)
    copy_bytes_per_second: float = 0.0
    attention: list[dict[str, Any]] = field(default_factory=list)
    fastest: dict[str, str] = field(default_factory=dict)
    steps: list[dict[str, Any]] = field(default_factory=list)
    cost_curve: dict[str, Any] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def measure(programme: Programme, device: str, deadline: float, dry_run: bool) -> Results:
    """Go through a programme until `deadline`, a value of `time.monotonic`."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    results = Results(_machine(device), dry_run)
    plans = contenders(device)
    checks = check_all(plans, programme.checked, device, dtype)
    results.checks = [asdict(check) | {"passed": check.passed} for check in checks]
    wrong = {check.contender for check in checks if not check.passed}
    timer = Timer(device, programme.repetitions)
    results.copy_bytes_per_second = copy_bandwidth(device, timer, programme.copy_bytes)
    from benchmarks.device.steps import time_steps

    for arguments in programme.steps:
        results.steps.append(arguments | time_steps(timer, device, **arguments))
    for shape in programme.timed:
        if time.monotonic() > deadline - CURVE_SECONDS:
            results.left_out.append(f"{_name(shape)}: no time")
            continue
        try:
            _time_shape(results, plans, shape, timer, device, dtype, wrong)
        except torch.OutOfMemoryError as error:
            results.left_out.append(f"{_name(shape)}: {error}")
    results.cost_curve = _curve(device, dtype, dry_run)
    return results


def _time_shape(
    results: Results,
    plans: dict[str, Any],
    shape: Shape,
    timer: Timer,
    device: str,
    dtype: torch.dtype,
    wrong: set[str],
) -> None:
    step = random_step(shape, 0, device, dtype)
    times = {
        name: timer.microseconds(plan(step))
        for name, plan in plans.items()
        if name not in wrong and applies(name, step)
    }
    best = shape.cache_bytes * dtype.itemsize / 2 / results.copy_bytes_per_second * 1e6
    shares = {name: best / microseconds for name, microseconds in times.items()}
    results.attention.append(asdict(shape) | {"microseconds": times, "bandwidth_share": shares})
    exact = {name: microseconds for name, microseconds in times.items() if name != "causal"}
    if exact:
        results.fastest[_name(shape)] = min(exact, key=lambda name: exact[name])


def _curve(device: str, dtype: torch.dtype, dry_run: bool) -> dict[str, Any]:
    try:
        from benchmarks.device.cost import LLAMA_8B, TINY, cost_curve
    except ImportError as error:
        return {"missing": str(error)}
    return asdict(cost_curve(TINY if dry_run else LLAMA_8B, device, dtype, CURVE_SECONDS / 2))


def _machine(device: str) -> dict[str, str]:
    machine = {"python": sys.version.split()[0], "torch": torch.__version__}
    machine["device"] = "CPU" if device == "cpu" else torch.cuda.get_device_name()
    try:
        import flashinfer

        machine["flashinfer"] = flashinfer.__version__
    except ImportError:
        machine["flashinfer"] = "none"
    return machine


def _name(shape: Shape) -> str:
    return f"{shape.width} x {shape.batch} x {shape.context}"


def table(results: Results) -> str:
    """The timings as a Markdown table."""
    names = list(dict.fromkeys(name for row in results.attention for name in row["microseconds"]))
    lines = [
        "| width | batch | context | " + " | ".join(names) + " |",
        "|" + "--:|" * (3 + len(names)),
    ]
    for row in results.attention:
        cells = [
            f"{row['microseconds'][name]:.0f} µs ({row['bandwidth_share'][name]:.0%})"
            if name in row["microseconds"]
            else ""
            for name in names
        ]
        lines.append(f"| {row['width']} | {row['batch']} | {row['context']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(results: Results) -> str:
    """Time over context at the first width and batch that were timed."""
    series: dict[str, list[tuple[float, float]]] = {}
    first = results.attention[0] if results.attention else {}
    for row in results.attention:
        if (row["width"], row["batch"]) == (first["width"], first["batch"]):
            for name, microseconds in row["microseconds"].items():
                series.setdefault(name, []).append((row["context"], microseconds))
    title = f"Attention of one layer, {first.get('width')} rows, batch {first.get('batch')}"
    return line_plot(title, "tokens of context", series)


def main(arguments: list[str] | None = None) -> int:
    """Run the script.

    Returns:
        Exit status: 1 when a contender computes something else than tree attention.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("device-results"), help="folder of the results")
    parser.add_argument("--minutes", type=float, default=8.0, help="when to stop measuring")
    parser.add_argument("--dry-run", action="store_true", help="everything at tiny shapes on the CPU")
    given = parser.parse_args(arguments)
    if not given.dry_run and not torch.cuda.is_available():
        parser.error("no GPU here; --dry-run tries the script on the CPU")
    deadline = time.monotonic() + 60 * given.minutes
    programme = tiny_programme() if given.dry_run else full_programme()
    results = measure(programme, "cpu" if given.dry_run else "cuda", deadline, given.dry_run)
    given.output.mkdir(parents=True, exist_ok=True)
    (given.output / "results.json").write_text(json.dumps(asdict(results), indent=1) + "\n")
    (given.output / "attention.svg").write_text(plot(results))
    text = table(results)
    (given.output / "attention.md").write_text(text + "\n")
    print(text)
    failed = [check for check in results.checks if not check["passed"]]
    for check in failed:
        print(f"WRONG: {check['contender']} at {check['shape']}: error {check['error']:.3g}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
