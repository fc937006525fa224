"""`agentspec train-head`: an EAGLE-3 draft head for a small model, on a small machine."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentspec.cli.console import messages
from agentspec.cli.options import ConfigOption, ModelOption, ThreadsOption, load_settings

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from agentspec.training.trainer import Progress

LINES_EVERY = 20
"""Optimiser steps between two lines where there is no terminal to draw a bar on."""


def train_head(
    output: Annotated[Path, typer.Argument(help="Folder for the head.")],
    work: Annotated[Path, typer.Option(help="Folder for data and checkpoints; a stopped run goes on from it.")],
    model: ModelOption = None,
    packages: Annotated[
        bool, typer.Option(help="Ask the model about code of installed packages under permissive licences.")
    ] = True,
    text: Annotated[list[Path] | None, typer.Option(help="A text file, or a folder of them; repeatable.")] = None,
    chat: Annotated[list[Path] | None, typer.Option(help="A JSONL file of conversations; repeatable.")] = None,
    prompts: Annotated[int, typer.Option(min=1, help="Questions about package code.")] = 12_000,
    documents: Annotated[int, typer.Option(min=0, help="Plain documents of package code to continue.")] = 6000,
    held_out: Annotated[int, typer.Option(min=1, help="Sequences of each sort kept for measuring.")] = 64,
    max_new: Annotated[int, typer.Option(min=1, help="Longest answer of the model, in tokens.")] = 192,
    record_minutes: Annotated[
        float | None, typer.Option(min=0, help="Stop recording answers after this long.", show_default=False)
    ] = None,
    draft_vocab: Annotated[int, typer.Option(min=16, help="Tokens the head can propose.")] = 4864,
    start: Annotated[
        Path | None, typer.Option(help="Folder of a head to train further, on other data or for longer.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Optimiser steps.")] = 3000,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Most tokens per step.")] = 2048,
    test_time_steps: Annotated[int, typer.Option(min=1, help="Tokens drafted ahead in training.")] = 3,
    learning_rate: Annotated[float, typer.Option(min=0, help="At its peak.")] = 1.5e-3,
    seed: Annotated[int, typer.Option(help="Of data and order.")] = 0,
    threads: ThreadsOption = None,
    config: ConfigOption = None,
) -> None:
    """Train an EAGLE-3 draft head. Stop it whenever you like: the same command goes on where it was."""
    import torch

    from agentspec.training.data import DataPlan
    from agentspec.training.pipeline import HeadPlan
    from agentspec.training.pipeline import train_head as run
    from agentspec.training.trainer import Recipe

    settings = load_settings(config, engine={"model": model})
    if threads is not None:
        torch.set_num_threads(threads)
    data = DataPlan(
        packages=packages,
        chats=tuple(chat or ()),
        texts=tuple(text or ()),
        prompts=prompts,
        documents=documents,
        held_out=held_out,
        seed=seed,
    )
    recipe = Recipe(
        steps=steps,
        batch_tokens=batch_tokens,
        test_time_steps=test_time_steps,
        single_share=Recipe().single_share if start is None else 0.0,
        learning_rate=learning_rate,
        seed=seed,
    )
    plan = HeadPlan(
        model=settings.engine.model,
        cache_directory=settings.cache_directory,
        work=work,
        output=output,
        data=data,
        recipe=recipe,
        max_new=max_new,
        draft_vocab_size=draft_vocab,
        start=start,
        record_seconds=math.inf if record_minutes is None else 60 * record_minutes,
        threads=threads,
    )
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    console = messages()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console, disable=not console.is_terminal) as bar:
        print(run(plan, _Display(console, bar)))


class _Display:
    """Progress bars on a terminal, lines elsewhere; see `agentspec.training.pipeline.Reporter`."""

    def __init__(self, console: Console, bar: Bar) -> None:
        self._console = console
        self._bar = bar
        self._tasks: dict[str, TaskID] = {}
        self._first: tuple[int, float] | None = None

    def recording(self, part: str, done: int, total: int) -> None:
        """Shards of a part of the data that are on disk."""
        self._show(f"recording {part}", done, total)
        if not self._console.is_terminal:
            self._console.print(f"recording {part}: {done} of {total} shards")

    def training(self, progress: Progress, total: int) -> None:
        """A step of the optimiser is done."""
        self._show("training", progress.step, total)
        if self._first is None:
            self._first = progress.step, time.monotonic()
        line = f"step {progress.step} of {total}: loss {progress.loss:.3f}"
        if progress.acceptance is not None:
            shares = " ".join(f"{share:.3f}" for share in progress.acceptance)
            self._console.print(f"{line}, held-out acceptance by position {shares}{self._remaining(progress, total)}")
        elif not self._console.is_terminal and progress.step % LINES_EVERY == 0:
            self._console.print(line + self._remaining(progress, total))

    def _show(self, task: str, done: int, total: int) -> None:
        if task not in self._tasks:
            self._tasks[task] = self._bar.add_task(task, total=total)
        self._bar.update(self._tasks[task], completed=done)

    def _remaining(self, progress: Progress, total: int) -> str:
        assert self._first is not None
        step, when = self._first
        if progress.step == step:
            return ""
        seconds = (time.monotonic() - when) / (progress.step - step) * (total - progress.step)
        return f", {seconds / 60:.0f} minutes to go"
