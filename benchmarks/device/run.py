"""One script for a machine with a GPU: are the verify kernels right, and what do they cost?

    python -m benchmarks.device.run --output results/

Needs torch, triton, flashinfer and this repository (and transformers for the cost curve). Every contender runs in a
process of its own, and results are written after each: one that crashes, hangs or does not compile costs its own
figures and no others. FlashInfer compiles in the background while parts are measured that need no compiler. All ends
after `--minutes`; shapes come in an order that leaves the least important for last, and what was left out is listed.
`--dry-run` goes through everything on a CPU at tiny shapes, to try the script itself; set TRITON_INTERPRET=1 for it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from agentspec.kernels.verify_kernels import VerifyKernel
from benchmarks.device.contenders import CAUSAL, COMPILED, names
from benchmarks.device.results import Results

if TYPE_CHECKING:
    from collections.abc import Sequence

COMPILED_FIRST = (CAUSAL, VerifyKernel.OWNED, VerifyKernel.TWO_PART_FA3)
"""Contenders that between them need all that FlashInfer compiles for the timed form."""
LONGEST_PART = 100.0
"""Seconds."""
START_SECONDS = 15.0
"""Kept for a process to load torch and end."""
SHOWN_CHARACTERS = 1500


class Run:
    """One run of the script.

    Args:
        device: `cuda` or `cpu`.
        dry_run: tiny shapes.
        output: folder of the results.
        deadline: of `time.monotonic`.
    """

    def __init__(self, device: str, dry_run: bool, output: Path, deadline: float) -> None:
        self._device = device
        self._output = output
        self._deadline = deadline
        self.results = Results(dry_run)
        output.mkdir(parents=True, exist_ok=True)

    def everything(self) -> None:
        """Run all parts, those first that need no compiler."""
        contenders = names(self._device)
        compiled = [name for name in contenders if name in COMPILED]
        compilers = {name: self._compile(name) for name in COMPILED_FIRST if name in compiled}
        parts = ["steps", "curve", *(name for name in contenders if name not in COMPILED), *compiled]
        if compiled:
            parts.append("forms")
        try:
            for place, name in enumerate(parts):
                if name in compilers:
                    self._wait(name, compilers[name])
                remaining = self._deadline - time.monotonic()
                share = remaining if place == len(parts) - 1 else min(LONGEST_PART, remaining)
                self.part(name, [*self._command(name), "--seconds", f"{share - START_SECONDS:.0f}"], share)
        finally:
            for compiler in compilers.values():
                compiler.kill()  # this run's own child; ends at once when it has ended already
                compiler.wait()

    def part(self, name: str, command: Sequence[str], seconds: float) -> None:
        """Run one part and write down what it found, whatever becomes of it.

        Args:
            name: of the part.
            command: what to run; prints one JSON object a line.
            seconds: after which it is ended.
        """
        if seconds <= 0:
            self.results.errors[name] = "no time was left"
            return
        began = time.monotonic()
        lines, problem = self._output / f"{name}.jsonl", None
        with lines.open("w") as found, (self._output / f"{name}.log").open("w+") as log:
            try:
                status = subprocess.run(command, stdout=found, stderr=log, timeout=seconds, check=False).returncode
                problem = f"exit status {status}" if status else None
            except subprocess.TimeoutExpired:
                problem = f"ended after {seconds:.0f} s"
            log.seek(0)
            said = log.read()[-SHOWN_CHARACTERS:]
        for line in lines.read_text().splitlines():
            try:
                self.results.add(json.loads(line))
            except ValueError:
                problem = problem or f"wrote something else than JSON: {line[:80]}"
        if problem is not None:
            self.results.errors[name] = f"{problem}\n{said}".strip()
        self.results.seconds[name] = round(time.monotonic() - began, 1)
        self.write()

    def write(self) -> None:
        """Write JSON, table and plot of what was found so far."""
        results = self.results
        found = asdict(results) | {"fastest": results.fastest(), "goals": [asdict(goal) for goal in results.goals()]}
        (self._output / "results.json").write_text(json.dumps(found, indent=1) + "\n")
        (self._output / "attention.svg").write_text(results.plot())
        (self._output / "attention.md").write_text(results.table() + "\n")

    def _command(self, name: str) -> list[str]:
        command = [sys.executable, "-m", "benchmarks.device.part", name, "--device", self._device]
        return [*command, "--dry-run"] if self.results.dry_run else command

    def _compile(self, name: str) -> subprocess.Popen[bytes]:
        jobs = max(1, (os.cpu_count() or 1) // len(COMPILED_FIRST))
        with (self._output / f"{name}.compile.log").open("w") as log:
            return subprocess.Popen(
                [*self._command(name), "--prepare"],
                stdout=log,
                stderr=log,
                env={**os.environ, "MAX_JOBS": str(jobs)},
            )

    def _wait(self, name: str, compiler: subprocess.Popen[bytes]) -> None:
        began = time.monotonic()
        try:
            compiler.wait(max(0.0, self._deadline - began - START_SECONDS))
        except subprocess.TimeoutExpired:
            self.results.left_out.append(f"{name}: its compiler did not end in time")
        self.results.seconds[f"{name}, waiting for the compiler"] = round(time.monotonic() - began, 1)


def main(arguments: list[str] | None = None) -> int:
    """Run the script.

    Returns:
        Exit status: 1 when a contender computes something else than tree attention, or a part failed.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("device-results"), help="folder of the results")
    parser.add_argument("--minutes", type=float, default=8.0, help="when to end")
    parser.add_argument("--dry-run", action="store_true", help="everything at tiny shapes on the CPU")
    given = parser.parse_args(arguments)
    if not given.dry_run:
        import torch

        if not torch.cuda.is_available():
            parser.error("no GPU here; --dry-run tries the script on the CPU")
    run = Run("cpu" if given.dry_run else "cuda", given.dry_run, given.output, time.monotonic() + 60 * given.minutes)
    run.everything()
    results = run.results
    print(results.table())
    for check in results.wrong:
        print(f"WRONG: {check['check']} at {check['shape']}: error {check['error']:.3g}", file=sys.stderr)
    for name, error in results.errors.items():
        print(f"FAILED: {name}: {error}", file=sys.stderr)
    return 1 if results.wrong or results.errors else 0


if __name__ == "__main__":
    sys.exit(main())
