"""One part of the device benchmark, in a process of its own: what goes wrong in it is lost alone.

    python -m benchmarks.device.part owned --device cuda --seconds 40

Writes one JSON object a line to stdout as it goes, so that whatever was found before a crash or a time limit counts.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import torch

from agentspec.kernels.measuring.accuracy import LARGEST_ERROR, error_of
from agentspec.kernels.measuring.steps import Shape, random_step
from agentspec.kernels.measuring.timing import Timer, copy_bandwidth
from benchmarks.device.contenders import CAUSAL, applies, contender
from benchmarks.device.programme import Programme, full_programme, tiny_programme

Records = Iterator[dict[str, Any]]

PREPARED = Shape(4, 1, 16)
"""A small step that makes FlashInfer compile and load what a contender needs."""


def attention(name: str, programme: Programme, device: str, deadline: float) -> Records:
    """Check a contender and time it over the shapes of the programme until `deadline`, of `time.monotonic`."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    plan = contender(name, device)
    wrong = False
    for seed, shape in enumerate(programme.checked):
        if name != CAUSAL and applies(name, shape):
            step = random_step(shape, seed, device, dtype)
            error = error_of(plan(step), step)
            wrong |= error > LARGEST_ERROR
            yield {"check": name, "shape": asdict(shape), "error": error, "passed": error <= LARGEST_ERROR}
    timer = Timer(device, programme.repetitions)
    for shape in programme.timed:
        if wrong or not applies(name, shape):
            continue
        if time.monotonic() > deadline:
            yield {"left_out": f"{name}, {shape_name(shape)}: no time"}
            continue
        try:
            microseconds = timer.microseconds(plan(random_step(shape, 0, device, dtype)))
        except torch.OutOfMemoryError as error:
            yield {"left_out": f"{name}, {shape_name(shape)}: {error}"}
        else:
            yield {"time": name, "shape": asdict(shape), "microseconds": microseconds}


def steps(programme: Programme, device: str) -> Records:
    """Bandwidth of a copy, and what a verify step costs beside attention."""
    timer = Timer(device, programme.repetitions)
    yield {"machine": _machine(device)}
    yield {"copy_bytes_per_second": copy_bandwidth(device, timer, programme.copy_bytes)}
    from benchmarks.device.steps import time_steps

    for arguments in programme.steps:
        yield {"steps": arguments | time_steps(timer, device, **arguments)}


def forms(device: str, deadline: float) -> Records:
    """Check our kernel in every form that there was time to compile."""
    from agentspec.kernels.measuring.planned import WORKSPACE_BYTES, planned
    from agentspec.kernels.verify_kernels import VerifyKernel
    from benchmarks.device.forms import FORMS, SIZES

    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
    for name, form in FORMS.items():
        if time.monotonic() > deadline:
            yield {"left_out": f"form {name}: no time"}
            continue
        for width, context in SIZES:
            step = form.step(width, context, device)
            error = error_of(planned(VerifyKernel.OWNED, step, workspace), step)
            yield {
                "check": f"owned ({name})",
                "shape": asdict(step.shape),
                "error": error,
                "passed": error <= LARGEST_ERROR,
            }


def curve(programme: Programme, device: str, dry_run: bool) -> Records:
    """T(n) of a random Llama-8B-shaped model in the local engine."""
    from benchmarks.device.cost import LLAMA_8B, TINY, cost_curve

    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    yield {"cost_curve": asdict(cost_curve(TINY if dry_run else LLAMA_8B, device, dtype, programme.curve_seconds))}


def prepare(name: str, device: str) -> Records:
    """Make FlashInfer compile what a contender needs."""
    contender(name, device)(random_step(PREPARED, 0, device, torch.bfloat16))()
    yield {}


def shape_name(shape: Shape) -> str:
    """As shapes are called in results: width x batch x context."""
    return f"{shape.width} x {shape.batch} x {shape.context}"


def _machine(device: str) -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    machine = {"torch": torch.__version__, "device": "CPU" if device == "cpu" else torch.cuda.get_device_name()}
    for package in ("triton", "flashinfer-python"):
        try:
            machine[package] = version(package)
        except PackageNotFoundError:
            machine[package] = "none"
    return machine


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="steps, curve, forms, or a contender")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=60.0, help="when to stop")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes")
    parser.add_argument("--prepare", action="store_true", help="only compile")
    given = parser.parse_args()
    deadline = time.monotonic() + given.seconds
    programme = tiny_programme() if given.dry_run else full_programme()
    others: dict[str, Callable[[], Records]] = {
        "steps": lambda: steps(programme, given.device),
        "curve": lambda: curve(programme, given.device, given.dry_run),
        "forms": lambda: forms(given.device, deadline),
    }
    if given.prepare:
        records = prepare(given.name, given.device)
    elif given.name in others:
        records = others[given.name]()
    else:
        records = attention(given.name, programme, given.device, deadline)
    for record in records:
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
