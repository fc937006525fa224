"""`agentspec models`: fetch and list the models that need no account and no hub."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from agentspec.cli.console import messages, output, print_json
from agentspec.cli.options import ConfigOption, JsonOption, load_settings

if TYPE_CHECKING:
    from pathlib import Path

app = typer.Typer(name="models", help="Fetch and list models.", no_args_is_help=True)


@app.command("pull")
def pull_model(
    name: Annotated[str, typer.Argument(help="A name that `agentspec models list` shows.")],
    config: ConfigOption = None,
) -> None:
    """Fetch a model with pip, check it and convert it; a no-op when it is there."""
    print(pull_with_progress(name, load_settings(config).cache_directory))


@app.command("list")
def list_models(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """The models that can be pulled, and whether they are."""
    from rich.table import Table

    from agentspec.engines.local.pull import CATALOGUE, models_directory, pulled

    cache_directory = load_settings(config).cache_directory
    ready = pulled(cache_directory)
    if as_json:
        folder = models_directory(cache_directory)
        print_json(
            [
                {
                    "name": name,
                    "path": folder / name if name in ready else None,
                    "fetch_bytes": model.wheel_bytes,
                    "summary": model.summary,
                }
                for name, model in CATALOGUE.items()
            ]
        )
        return
    table = Table("name", "pulled", "fetch", "summary")
    for name, model in CATALOGUE.items():
        table.add_row(name, "yes" if name in ready else "no", f"{model.wheel_bytes >> 20} MiB", model.summary)
    output().print(table)


def pull_with_progress(name: str, cache_directory: Path) -> Path:
    """Pull a model behind a progress bar on a terminal, or a line for each stage elsewhere.

    Raises:
        ModelError: see `agentspec.engines.local.pull.pull`.
    """
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    from agentspec.engines.local.pull import pull

    console = messages()
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:
        tasks: dict[str, TaskID] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=total)
                if not console.is_terminal:
                    console.print(stage)
            progress.update(tasks[stage], completed=done)

        return pull(name, cache_directory, report)
