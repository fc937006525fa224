"""`agentspec index`: bring a repository's index up to date, check it, or keep it so."""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentspec.cli.console import messages, output, print_json, show_error
from agentspec.cli.options import ConfigOption, JsonOption, ModelOption, load_settings
from agentspec.errors import IndexStoreError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agentspec.config import Settings
    from agentspec.index.build import BuildOptions, BuildReport
    from agentspec.index.census import Progress
    from agentspec.index.tokenizer import IndexTokenizer

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells report it."""

_PLAIN_LINE_SECONDS = 5.0
"""Where there is no terminal, how often progress is said."""


def index(
    repository: Annotated[Path, typer.Argument(help="The repository's folder.")] = Path(),
    model: ModelOption = None,
    config: ConfigOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done; publish nothing.")] = False,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Use nothing of the present index.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Check every byte of the present index instead.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Then keep it up to date until interrupted.")] = False,
    json: JsonOption = False,
) -> None:
    """Index a repository so that drafts can come from its code; fast and harmless to run again.

    Exit status: 0 done; 2 the repository cannot be indexed as named; 4 the index cannot be written, is being written
    by another process, or --verify found damage; 5 the model's tokenizer cannot be had; 130 interrupted, the published
    index unchanged.
    """
    if watch and (dry_run or verify):
        raise InvalidRequestError("--watch goes with neither --dry-run nor --verify")
    settings = load_settings(config, engine={"model": model})
    tokenizer = tokenizer_of(settings)
    if verify:
        _verify(repository, tokenizer, settings, json)
        return
    from agentspec.index.build import BuildOptions, build_index

    options = BuildOptions(settings.index.directory, settings.index.max_file_bytes, dry_run=dry_run, rebuild=rebuild)
    try:
        with _shown_progress() as report_progress:
            report = build_index(repository, tokenizer, options, report_progress)
        _show(report, options, json)
        if watch:
            _watch(repository, tokenizer, options, json)
    except KeyboardInterrupt:
        messages().print("interrupted; the published index is unchanged")
        raise typer.Exit(INTERRUPTED) from None


def tokenizer_of(settings: Settings) -> IndexTokenizer:
    """The tokenizer of the model that the settings name; a model that can be pulled is pulled first.

    Raises:
        ModelError: it cannot be had.
    """
    from agentspec.engines.local.pull import CATALOGUE, models_directory
    from agentspec.index.tokenizer import TOKENIZER_FILE, IndexTokenizer

    model = settings.engine.model
    pulled = models_directory(settings.cache_directory) / model
    if model in CATALOGUE and not (pulled / TOKENIZER_FILE).is_file():
        from agentspec.cli.models import pull_with_progress

        pull_with_progress(model, settings.cache_directory)
    source = str(pulled) if (pulled / TOKENIZER_FILE).is_file() else model
    return IndexTokenizer(source, settings.index.directory)


def describe(report: BuildReport) -> dict[str, Any]:
    """A build's report as JSON values."""
    manifest = report.manifest
    return {
        "repository": report.repository,
        "store": report.store,
        "changed": report.changed,
        "generation": manifest.generation if manifest else None,
        "files": report.files,
        "tokens": manifest.tokens if manifest else None,
        "bytes": manifest.size_bytes if manifest else None,
        "segments": len(manifest.segments) if manifest else None,
        "new_documents": report.new_documents,
        "new_tokens": report.new_tokens,
        "skipped": report.skipped,
        "warnings": report.warnings,
        "seconds": {stage: round(seconds, 4) for stage, seconds in report.seconds.items()},
    }


def _verify(repository: Path, tokenizer: IndexTokenizer, settings: Settings, as_json: bool) -> None:
    from agentspec.index.store import find_store
    from agentspec.index.walk import check_repository

    store = find_store(settings.index.directory, check_repository(repository), tokenizer.identity.fingerprint)
    problems = store.verify()
    if as_json:
        print_json({"store": store.directory, "problems": problems})
    if problems:
        raise IndexStoreError(f"the index in {store.directory} is damaged: {'; '.join(problems)}. Run with --rebuild")
    if not as_json:
        manifest = store.manifest()
        output().print(f"generation {manifest.generation} is whole: {manifest.size_bytes:,} bytes read", soft_wrap=True)


def _watch(repository: Path, tokenizer: IndexTokenizer, options: BuildOptions, as_json: bool) -> None:
    from dataclasses import replace

    from agentspec.index.watch import watch_index

    messages().print(f"watching {repository.resolve()}; Ctrl-C ends it", soft_wrap=True)
    options = replace(options, rebuild=False)
    # Ctrl-C is how a watch ends, whether it falls into a wait or into a build, which publishes whole or not at all.
    with suppress(KeyboardInterrupt):
        watch_index(
            repository,
            tokenizer,
            options,
            on_report=lambda report: _show(report, options, as_json),
            on_error=show_error,
        )


def _show(report: BuildReport, options: BuildOptions, as_json: bool) -> None:
    for warning in report.warnings:
        messages().print(f"warning: {warning}", soft_wrap=True, markup=False)
    if as_json:
        print_json({"dry_run": options.dry_run, **describe(report)})
        return
    console = output()
    for line in _summary(report, options):
        console.print(line, soft_wrap=True, markup=False)


def _summary(report: BuildReport, options: BuildOptions) -> Iterator[str]:
    manifest = report.manifest
    if options.dry_run:
        news = f"{report.new_documents:,} to tokenise" if report.changed else "nothing to do"
        yield f"would index {report.files:,} files of {report.repository}: {news}"
    elif manifest is not None:
        verb = "indexed" if report.changed else "up to date:"
        per_token = manifest.size_bytes / max(manifest.tokens, 1)
        yield (
            f"{verb} {report.repository}: {report.files:,} files, {manifest.tokens:,} tokens, "
            f"{per_token:.2f} bytes per token, generation {manifest.generation}"
        )
        if report.changed:
            stages = ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in report.seconds.items())
            yield f"new: {report.new_documents:,} contents, {report.new_tokens:,} tokens ({stages})"
    if report.skipped:
        yield "left out: " + ", ".join(f"{count:,} {reason}" for reason, count in report.skipped.items())


@contextmanager
def _shown_progress() -> Iterator[Callable[[Progress], None]]:
    """A progress bar with the time left on a terminal; a line now and then elsewhere."""
    console = messages()
    if not console.is_terminal:
        yield _plain_lines()
        return
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as ProgressBar

    columns = (TextColumn("indexing"), BarColumn(), DownloadColumn(), TextColumn("{task.fields[files]}"))
    with ProgressBar(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task("indexing", total=None, files="")

        def show(progress: Progress) -> None:
            files = f"{progress.files_done:,} of {progress.files_total:,} files"
            bar.update(task, completed=progress.bytes_done, total=progress.bytes_total, files=files)

        yield show


def _plain_lines() -> Callable[[Progress], None]:
    console = messages()
    said = time.monotonic()

    def show(progress: Progress) -> None:
        nonlocal said
        if time.monotonic() - said >= _PLAIN_LINE_SECONDS:
            said = time.monotonic()
            share = progress.bytes_done / max(progress.bytes_total, 1)
            console.print(
                f"indexing: {progress.files_done:,} of {progress.files_total:,} files, {share:.0%} of the bytes"
            )

    return show
