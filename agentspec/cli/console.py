"""Where the CLI writes: results to stdout, everything that is said about them to stderr."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

WIDTH_OF_FILES = 120
"""Columns of results that go to a file or a pipe, unless `COLUMNS` says otherwise: no table is cut there."""


def output() -> Console:
    """The console of results; plain text when it is not a terminal."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH_OF_FILES
    return console


def messages() -> Console:
    """The console of progress, warnings and errors."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def show_error(error: Exception) -> None:
    """One line on stderr, its text as it is."""
    from rich.text import Text

    messages().print(Text("error: ", style="bold red").append(str(error), style="not bold default"), soft_wrap=True)


def print_json(value: Any) -> None:
    """One JSON document on stdout, whole lines, for programs; paths become strings."""
    print(json.dumps(value, indent=2, default=str))
