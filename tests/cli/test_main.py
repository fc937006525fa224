"""The command as a whole: help, errors, interruptions."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import typer

from agentspec import __version__
from agentspec.cli.main import _VerbGroup
from agentspec.errors import AgentspecError, IndexStoreError, InvalidRequestError, ModelError, OverloadedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result


def test_help_names_every_verb(agentspec: Callable[..., Result]) -> None:
    result = agentspec("--help")
    assert result.exit_code == 0
    for verb in ("index", "status", "serve", "connect", "lsp", "bench", "demo", "doctor", "models"):
        assert f"│ {verb} " in result.stdout


def test_help_loads_nothing_heavy() -> None:
    script = "import sys, agentspec.cli.main; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert {"torch", "transformers", "numpy", "fastapi", "pydantic", "tokenizers", "rich"}.isdisjoint(loaded)


def test_version(agentspec: Callable[..., Result]) -> None:
    assert agentspec("--version").stdout == f"agentspec {__version__}\n"


def test_an_unknown_verb_is_a_usage_error(agentspec: Callable[..., Result]) -> None:
    result = agentspec("sevre")
    assert result.exit_code == 2
    assert "serve" in result.stderr


def raising(error: BaseException) -> typer.Typer:
    app = typer.Typer(cls=_VerbGroup, pretty_exceptions_enable=False)

    @app.callback()
    def root() -> None: ...

    @app.command()
    def verb() -> None:
        raise error

    return app


def run(app: typer.Typer) -> Result:
    from typer.testing import CliRunner  # noqa: PLC0415

    return CliRunner().invoke(app, ["verb"])


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (AgentspecError("x"), 1),
        (InvalidRequestError("x"), 2),
        (IndexStoreError("x"), 4),
        (ModelError("x"), 5),
        (OverloadedError("x"), 1),
    ],
)
def test_errors_on_purpose_end_with_their_status_and_one_line(error: AgentspecError, status: int) -> None:
    result = run(raising(error))
    assert (result.exit_code, result.stdout, result.stderr) == (status, "", "error: x\n")


def test_what_an_error_says_is_no_markup() -> None:
    message = "bad key '[server]' in [/a/b] " + "with a long explanation " * 10
    assert run(raising(InvalidRequestError(message))).stderr == f"error: {message}\n"


def test_other_errors_are_bugs_and_show() -> None:
    result = run(raising(KeyError("a bug")))
    assert isinstance(result.exception, KeyError)


def test_an_interruption_is_no_traceback() -> None:
    result = run(raising(KeyboardInterrupt()))
    assert result.exit_code == 130
    assert result.stderr == ""


def test_a_process_reports_errors_the_same_way(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "agentspec", "doctor", "--config", str(tmp_path / "nowhere.yaml")]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr == f"error: settings file {tmp_path}/nowhere.yaml does not exist\n"
