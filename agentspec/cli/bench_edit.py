"""`agentspec bench edit`: editing requests end to end, speculation off and on."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentspec.cli.bench_sources import DIFFERENT_OUTPUT, compare_sources
from agentspec.cli.console import messages, output, print_json
from agentspec.cli.options import (
    ConfigOption,
    DeviceOption,
    DtypeOption,
    JsonOption,
    ModelOption,
    ThreadsOption,
    load_settings,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentspec.benchmarking.editing import EditTask, ModeSummary, Pair, Spread
    from agentspec.config import Settings


def edit(
    repository: Annotated[Path, typer.Option("--repository", help="Whose files are edited.")] = Path(),
    prompts: Annotated[int, typer.Option(min=1, help="Requests; each runs in both modes.")] = 12,
    kinds: Annotated[
        list[str] | None, typer.Option("--kind", help="A kind of edit; may be repeated.", show_default="all")
    ] = None,
    model: ModelOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    threads: ThreadsOption = None,
    config: ConfigOption = None,
    sources: Annotated[
        bool, typer.Option("--sources", help="Compare prompt lookup, the copies, EAGLE-3, and all together.")
    ] = False,
    gguf: Annotated[
        Path | None, typer.Option(help="With --sources: also run llama.cpp on these weights.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run editing requests with speculation off and on, one after the other, and compare time and text.

    Answers end where the model begins to repeat itself: small models loop, and loops are easy to draft.

    With --sources every kind of draft runs by itself too. Exits with 1 when a request fails or a text differs.
    """
    from agentspec.cli.indexed_tasks import indexed_tasks
    from agentspec.cli.ready_model import ready_model

    settings = load_settings(
        config,
        # One request at a time and nothing kept: the second run of a prompt must not profit from the first.
        engine={
            "model": model,
            "device": device,
            "dtype": dtype,
            "threads": threads,
            "retained_prefixes": 0,
            "max_running": 1,
        },
    )
    folder = ready_model(settings)
    tasks = indexed_tasks(settings, folder, repository, kinds, prompts).tasks
    if sources:
        compare_sources(settings, tasks, repository.resolve(), gguf, as_json=as_json)
        return
    pairs = asyncio.run(_run(settings, folder, str(repository.resolve()), tasks))
    if as_json:
        print_json(_as_document(pairs))
    else:
        _print_tables(pairs)
    if not all(pair.identical for pair in pairs):
        raise typer.Exit(DIFFERENT_OUTPUT)


async def _run(settings: Settings, model: Path, repository: str, tasks: Sequence[EditTask]) -> list[Pair]:
    from rich.progress import Progress

    from agentspec.benchmarking.editing import run_pair
    from agentspec.benchmarking.repetition import cut_loops
    from agentspec.cli.session import running_engine

    console = messages()
    pairs = []
    async with running_engine(settings, model) as engine:
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            bar = progress.add_task("editing", total=len(tasks))
            # This also warms caches, threads and allocators up.
            tasks = await cut_loops(engine, tasks, repository)
            for number, task in enumerate(tasks):
                pairs.append(await run_pair(engine, task, repository, drafted_first=number % 2 == 1))
                progress.advance(bar)
    return pairs


def _as_document(pairs: Sequence[Pair]) -> dict[str, Any]:
    from agentspec.benchmarking.editing import overall_ratio, peak_memory_bytes, summarise_mode

    return {
        "plain": asdict(summarise_mode([pair.plain for pair in pairs])),
        "drafted": asdict(summarise_mode([pair.drafted for pair in pairs])),
        "ratio": overall_ratio(pairs),
        "identical": sum(pair.identical for pair in pairs),
        "peak_memory_bytes": peak_memory_bytes(),
        "requests": [
            {
                "name": pair.task.name,
                "kind": pair.task.kind,
                "path": pair.task.edited_path,
                "tokens": len(pair.plain.token_ids),
                "verify_steps": pair.drafted.receipt.verify_steps,
                "plain_seconds": pair.plain.seconds,
                "drafted_seconds": pair.drafted.seconds,
                "ratio": pair.ratio,
                "identical": pair.identical,
                "drafted_by_source": dict(pair.drafted.receipt.drafted),
                "accepted_by_source": dict(pair.drafted.receipt.accepted),
                "error": pair.plain.error or pair.drafted.error,
                "text": pair.drafted.text,
            }
            for pair in pairs
        ],
    }


def _print_tables(pairs: Sequence[Pair]) -> None:
    from rich.table import Table

    from agentspec.benchmarking.editing import overall_ratio, peak_memory_bytes, summarise_mode

    console = output()
    table = Table("kind", box=None)
    for name in ("requests", "tokens", "tokens/step", "plain tok/s", "drafted tok/s", "ratio", "identical"):
        table.add_column(name, justify="right")
    for kind in dict.fromkeys(pair.task.kind for pair in pairs):
        _add_kind(table, kind, [pair for pair in pairs if pair.task.kind == kind])
    table.add_section()
    _add_kind(table, "all", pairs)
    console.print(table)
    plain, drafted = (summarise_mode(measured) for measured in ([p.plain for p in pairs], [p.drafted for p in pairs]))
    console.print()
    details = Table("", "plain", "drafted", box=None)
    for name, figures in _details(plain, drafted):
        details.add_row(name, *figures)
    console.print(details)
    console.print(f"\npeak memory {peak_memory_bytes() / 2**20:,.0f} MiB; ratio {overall_ratio(pairs):.2f}")
    for pair in pairs:
        if not pair.identical:
            reason = pair.plain.error or pair.drafted.error or "the texts differ"
            messages().print(f"request {pair.task.name} ({pair.task.kind}, {pair.task.edited_path}): {reason}")


def _add_kind(table: Any, name: str, pairs: Sequence[Pair]) -> None:
    from agentspec.benchmarking.editing import overall_ratio, summarise_mode

    plain = summarise_mode([pair.plain for pair in pairs])
    drafted = summarise_mode([pair.drafted for pair in pairs])
    table.add_row(
        name,
        str(len(pairs)),
        str(drafted.tokens),
        f"{drafted.tokens_per_step:.2f}",
        f"{plain.tokens_per_second:.1f}",
        f"{drafted.tokens_per_second:.1f}",
        f"{overall_ratio(pairs):.2f}",
        f"{sum(pair.identical for pair in pairs)}/{len(pairs)}",
    )


def _details(plain: ModeSummary, drafted: ModeSummary) -> list[tuple[str, tuple[str, str]]]:
    def spread(value: Spread) -> str:
        return f"{value.median * 1e3:.1f} / {value.p95 * 1e3:.1f}"

    return [
        ("tokens/s, prefill included", (f"{plain.tokens_per_second:.1f}", f"{drafted.tokens_per_second:.1f}")),
        (
            "tokens/s after the first",
            (f"{plain.decode_tokens_per_second:.1f}", f"{drafted.decode_tokens_per_second:.1f}"),
        ),
        ("verify steps", (str(plain.verify_steps), str(drafted.verify_steps))),
        ("tokens per step", (f"{plain.tokens_per_step:.2f}", f"{drafted.tokens_per_step:.2f}")),
        ("time to first token, ms (median / p95)", (spread(plain.first_token), spread(drafted.first_token))),
        ("between tokens, ms (median / p95)", (spread(plain.token_gap), spread(drafted.token_gap))),
        ("between bursts, ms (median / p95)", (spread(plain.step_gap), spread(drafted.step_gap))),
        ("errors", (str(plain.errors), str(drafted.errors))),
    ]
