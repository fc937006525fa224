"""`agentspec bench replay`: drafters on recorded edits, without running a model."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentspec.cli.console import messages, output, print_json
from agentspec.cli.options import ConfigOption, JsonOption, ModelOption, load_settings
from agentspec.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agentspec.benchmarking.codec import FileCodec
    from agentspec.benchmarking.comparison import ComparisonRow
    from agentspec.benchmarking.git_history import Edit
    from agentspec.benchmarking.traces import TraceSet

MAX_TRACE_TOKENS = 16_000
"""Edits whose prompt or answer is longer are left out."""


def replay(
    git: Annotated[
        Path | None, typer.Option(help="Build traces from this repository's history.", show_default=False)
    ] = None,
    traces: Annotated[Path | None, typer.Option(help="Read traces from this file.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(min=1, help="Edits taken from the history, newest first.")] = 20,
    every: Annotated[
        int, typer.Option(min=1, help="Take one commit in so many, so that the edits reach further back.")
    ] = 1,
    message: Annotated[
        str | None,
        typer.Option(help="Only commits whose message matches this regular expression.", show_default="all"),
    ] = None,
    formats: Annotated[
        list[str] | None, typer.Option("--format", help="An edit format; may be repeated.", show_default="all")
    ] = None,
    drafters: Annotated[
        list[str] | None, typer.Option("--drafter", help="A drafter; may be repeated.", show_default="all")
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="A tokenizer.json, or a folder that holds one.", show_default="the model's"),
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Write the traces to this file.", show_default=False)] = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML page with plots.", show_default=False)] = None,
    model: ModelOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replay recorded edits under greedy verification: tokens per step, without running a model."""
    from rich.progress import Progress

    from agentspec.benchmarking.codec import FileCodec
    from agentspec.benchmarking.comparison import compare, contenders
    from agentspec.benchmarking.git_history import recorded_edits
    from agentspec.benchmarking.peers import installed_peers
    from agentspec.benchmarking.traces import save_traces

    if (git is None) == (traces is None):
        raise InvalidRequestError("name either a repository (--git) or a trace file (--traces)")
    for file in (save, report):
        if file and (file.is_dir() or not file.absolute().parent.is_dir()):
            raise InvalidRequestError(f"{file} cannot be written: name a file in a folder that exists")
    field = contenders(drafters or ["agentspec", "suffix", "suffix+repo", *installed_peers()])
    codec = FileCodec.load(tokenizer or _model_folder(model, config))
    console = messages()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        if git is not None:
            edits = progress.track(recorded_edits(git, limit, every, message), limit, description="reading edits")
            source, recorded = git, _from_history(edits, formats, codec)
        else:
            assert traces is not None
            source, recorded = traces, _from_file(traces, formats, codec)
        if not recorded.traces:
            commits = f"no commit that matches {message!r}" if message else "no commit"
            raise InvalidRequestError(f"there are no edits to replay: {commits} modifies a source file that fits")
        if save:
            save_traces(save, recorded)
        task = progress.add_task("replaying", total=len(recorded.traces))
        rows = compare(recorded.traces, field, codec, lambda: progress.advance(task))
    if report:
        _write_report(report, source, rows)
    if as_json:
        print_json([asdict(row) for row in rows])
    else:
        _print_rows(rows)


def _model_folder(model: str | None, config: Path | None) -> Path:
    from agentspec.cli.ready_model import ready_model

    return ready_model(load_settings(config, engine={"model": model}))


def _from_history(edits: Iterable[Edit], formats: Sequence[str] | None, codec: FileCodec) -> TraceSet:
    from agentspec.benchmarking.formats import FORMATS
    from agentspec.benchmarking.traces import TraceSet, build_traces

    return TraceSet(build_traces(edits, codec, formats or list(FORMATS), MAX_TRACE_TOKENS), codec.fingerprint)


def _from_file(file: Path, formats: Sequence[str] | None, codec: FileCodec) -> TraceSet:
    from agentspec.benchmarking.traces import TraceSet, load_traces

    recorded = load_traces(file)
    if recorded.tokenizer != codec.fingerprint:
        raise InvalidRequestError(f"{file} was made with another tokenizer; name that one with --tokenizer")
    wanted = [trace for trace in recorded.traces if not formats or trace.format in formats]
    return TraceSet(tuple(wanted), recorded.tokenizer)


def _print_rows(rows: Sequence[ComparisonRow]) -> None:
    from rich.table import Table

    from agentspec.benchmarking.comparison import HEADINGS, NODE_LIMITS, overview, overview_heading

    console = output()
    for name, group in groupby(rows, key=lambda row: row.format):
        members = list(group)
        summary = members[0].summary
        console.print(f"[bold]{name}[/], {summary.traces} edits, {summary.tokens:,} tokens")
        table = Table("drafter", "setting", box=None, pad_edge=False)
        for heading in HEADINGS:
            table.add_column(heading, justify="right")
        for row in members:
            table.add_row(row.drafter, row.setting, *row.figures())
        console.print(table, "")
    for nodes in NODE_LIMITS:
        console.print(overview_heading(nodes))
        best = overview(rows, nodes)
        formats = list(dict.fromkeys(row.format for row in rows))
        table = Table("drafter", box=None, pad_edge=False)
        for name in formats:
            table.add_column(name, justify="right")
        for drafter, of_drafter in best.items():
            table.add_row(drafter, *(of_drafter[name].in_brief() for name in formats))
        console.print(table, "")


def _write_report(file: Path, source: Path, rows: Sequence[ComparisonRow]) -> None:
    from agentspec import __version__
    from agentspec.benchmarking.report import render_report
    from agentspec.cli.machine import cpu_name

    facts = (f"agentspec {__version__}", source.resolve().name, cpu_name(), f"{datetime.now(UTC):%Y-%m-%d}")
    file.write_text(render_report("Replay of recorded edits", facts, rows), encoding="utf-8")
