"""Flags that several verbs share, and the settings they make."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from agentspec.config import Settings

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", help="YAML settings file; the environment and flags win over it.", show_default=False),
]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", help="A pulled model, a folder in Hugging Face format, or a hub id.", show_default=False),
]
DeviceOption = Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps.", show_default=False)]
DtypeOption = Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16.", show_default=False)]
ThreadsOption = Annotated[int | None, typer.Option(help="CPU threads; default: measured.", show_default=False)]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout instead of tables.")]


def load_settings(config: Path | None, **sections: dict[str, Any]) -> Settings:
    """Settings from file, environment and those flags that were given (None means not given).

    Raises:
        InvalidRequestError: a value does not fit.
    """
    from agentspec.config import Settings

    given = {
        section: {name: value for name, value in values.items() if value is not None}
        for section, values in sections.items()
    }
    return Settings.load(config, **{section: values for section, values in given.items() if values})


def local_url(config: Path | None) -> str:
    """Base URL of the server that `agentspec serve` starts with the same settings.

    Raises:
        InvalidRequestError: a value does not fit.
    """
    server = load_settings(config).server
    host = f"[{server.host}]" if ":" in server.host else server.host
    return f"http://{host}:{server.port}"
