"""`agentspec bench edit --sources`: every kind of draft by itself and all together, in one run."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from agentspec.cli.console import messages, output, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from agentspec.benchmarking.draft_modes import ModeRow
    from agentspec.benchmarking.editing import EditTask
    from agentspec.config import Settings

DIFFERENT_OUTPUT = 1
"""Exit status when a request failed or speculation changed a text."""


def compare_sources(
    settings: Settings, tasks: Sequence[EditTask], repository: Path, gguf: Path | None, *, as_json: bool
) -> None:
    """Run the tasks in all modes and print the table.

    Args:
        settings: of the engine.
        tasks: what to ask.
        repository: whose files are edited.
        gguf: weights for llama.cpp, which then runs too.
        as_json: print JSON.

    Raises:
        InvalidRequestError: `gguf` cannot be measured.
        typer.Exit: with `DIFFERENT_OUTPUT` when a request failed or a text differs from plain decoding's.
    """
    from rich.progress import Progress

    from agentspec.benchmarking.draft_modes import draft_modes, mode_rows, run_modes
    from agentspec.benchmarking.llama_cpp import llama_tokens_per_second, require_llama_cpp
    from agentspec.drafters.eagle3.drafter import shipped_head
    from agentspec.engines.local.target import load_target

    if gguf is not None:
        require_llama_cpp(gguf)
    if settings.engine.draft_head == "auto":
        # Measured whether or not it would be chosen here.
        head = shipped_head(settings.engine.model)
        engine = settings.engine.model_copy(update={"draft_head": str(head or "none")})
        settings = settings.model_copy(update={"engine": engine})
    target = load_target(settings)
    console = messages()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("editing", total=len(tasks))
        measured = asyncio.run(
            run_modes(
                target,
                settings,
                draft_modes(target),
                tasks,
                repository=str(repository),
                advance=lambda: progress.advance(bar),
            )
        )
    rows = mode_rows(measured)
    llama = llama_tokens_per_second(gguf, tasks, settings.engine.threads or 1) if gguf else {}
    if as_json:
        print_json({"modes": [asdict(row) for row in rows], "llama_cpp_tokens_per_second": llama})
    else:
        _print(rows, llama)
    if any(row.identical < row.requests for row in rows):
        raise typer.Exit(DIFFERENT_OUTPUT)


def _print(rows: Sequence[ModeRow], llama: dict[str, float]) -> None:
    from rich.table import Table

    from agentspec.benchmarking.draft_modes import PLAIN

    table = Table("kind", "mode", box=None)
    for name in ("tokens", "tokens/step", "drafted", "tok/s", "of plain", "identical"):
        table.add_column(name, justify="right")
    for number, row in enumerate(rows):
        table.add_row(
            row.kind,
            row.mode,
            str(row.tokens),
            f"{row.tokens_per_step:.2f}",
            f"{row.drafted_per_step:.1f}",
            f"{row.tokens_per_second:.1f}",
            f"{row.of_plain:.2f}",
            f"{row.identical}/{row.requests}",
        )
        if number + 1 < len(rows) and rows[number + 1].kind == row.kind:
            continue
        if row.kind in llama:
            plain = next(one for one in rows if one.kind == row.kind and one.mode == PLAIN).tokens_per_second
            rate = llama[row.kind]
            table.add_row(row.kind, "llama.cpp", "", "1.00", "0.0", f"{rate:.1f}", f"{rate / plain:.2f}", "")
        table.add_section()
    output().print(table)
