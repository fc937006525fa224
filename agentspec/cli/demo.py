"""`agentspec demo`: the main job on this repository, speculation off and on, with proof that the text is the same."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentspec.cli.console import output
from agentspec.cli.options import (
    ConfigOption,
    DeviceOption,
    DtypeOption,
    ModelOption,
    ThreadsOption,
    load_settings,
)
from agentspec.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentspec.benchmarking.editing import EditTask, Pair
    from agentspec.benchmarking.editing_loop import EditingLoop
    from agentspec.benchmarking.measure import Measurement
    from agentspec.config import Settings

DIFFERENT_OUTPUT = 1
"""Exit status when a request failed or speculation changed a text."""

_HEADINGS = (
    "tokens",
    "verify\nsteps",
    "tokens\nper step",
    "tok/s\noff",
    "tok/s\non",
    "ratio",
    "cached\nprompt",
    "identical",
)


def demo(
    repository: Annotated[Path, typer.Option("--repository", help="A checkout of agentspec.")] = Path(),
    model: ModelOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    threads: ThreadsOption = None,
    config: ConfigOption = None,
) -> None:
    """Edit a file of this repository in a loop of requests, speculation off and on, and compare.

    Exits with 1 when a request fails or a text differs.
    """
    from agentspec.benchmarking.editing_loop import EDITED_FILE, EditingLoop, paired
    from agentspec.cli.ready_model import ready_model
    from agentspec.cli.session import index_repository

    file = repository / EDITED_FILE
    if not file.is_file():
        raise InvalidRequestError(f"{file} does not exist; run the demo in a checkout of agentspec, or name one")
    settings = load_settings(
        config, engine={"model": model, "device": device, "dtype": dtype, "threads": threads, "max_running": 1}
    )
    folder = ready_model(settings)
    report = index_repository(settings, repository)
    assert report.manifest is not None
    output().print(
        f"{settings.engine.model} edits {EDITED_FILE} of {report.repository} "
        f"({report.files:,} files, {report.manifest.tokens:,} tokens indexed)",
        soft_wrap=True,
    )
    loop = EditingLoop(file.read_text(encoding="utf-8"))
    plain, drafted = (
        asyncio.run(_run(loop, settings, folder, report.repository, speculation=mode)) for mode in (False, True)
    )
    pairs = paired(plain, drafted)
    _print_table(pairs)
    if not all(pair.identical for pair in pairs):
        raise typer.Exit(DIFFERENT_OUTPUT)


async def _run(
    loop: EditingLoop, settings: Settings, model: Path, repository: Path, *, speculation: bool
) -> list[tuple[EditTask, Measurement]]:
    """The loop in one mode, on an engine of its own: neither mode finds what the other has cached."""
    from agentspec.cli.session import running_engine

    console = output()
    mode = "on" if speculation else "off"

    def announce(task: EditTask) -> None:
        console.print()
        console.rule(f"{task.kind}, speculation {mode}", align="left")

    def show(text: str) -> None:
        console.out(text, end="", highlight=False)

    async with running_engine(settings, model) as engine:
        return await loop.run(engine, str(repository), speculation=speculation, announce=announce, show=show)


def _print_table(pairs: Sequence[Pair]) -> None:
    from rich.table import Table

    from agentspec.benchmarking.editing import overall_ratio, summarise_mode

    table = Table(box=None, pad_edge=False, collapse_padding=True)
    table.add_column("request", no_wrap=True)
    for heading in _HEADINGS:
        table.add_column(heading, justify="right", vertical="bottom", no_wrap=True)
    for label, members in [*((pair.task.kind, [pair]) for pair in pairs), ("loop", pairs)]:
        plain = summarise_mode([pair.plain for pair in members])
        drafted = summarise_mode([pair.drafted for pair in members])
        table.add_row(
            label,
            str(drafted.tokens),
            f"{plain.verify_steps} → {drafted.verify_steps}",
            f"{drafted.tokens_per_step:.1f}",
            f"{plain.tokens_per_second:.1f}",
            f"{drafted.tokens_per_second:.1f}",
            f"{overall_ratio(members):.2f}",
            str(sum(pair.drafted.receipt.cached_tokens for pair in members)),
            "yes" if all(pair.identical for pair in members) else "no",
        )
    console = output()
    console.print("\n")
    console.print(table)
    for pair in pairs:
        for mode, measured in (("off", pair.plain), ("on", pair.drafted)):
            if measured.error:
                console.print(f"{pair.task.kind}, speculation {mode}: {measured.error}", markup=False, soft_wrap=True)
