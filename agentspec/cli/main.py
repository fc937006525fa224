"""The `agentspec` command: its verbs, and what becomes of errors."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from agentspec import __version__
from agentspec.cli import bench, kernels, models
from agentspec.cli.connect import connect
from agentspec.cli.console import show_error
from agentspec.cli.demo import demo
from agentspec.cli.doctor import doctor
from agentspec.cli.index import index
from agentspec.cli.lsp import lsp
from agentspec.cli.serve import serve
from agentspec.cli.status import status
from agentspec.cli.train_head import train_head
from agentspec.errors import AgentspecError


class _VerbGroup(TyperGroup):
    """Turns errors raised on purpose into one message on stderr and their exit status; others are bugs and show."""

    def invoke(self, *arguments: Any) -> Any:
        """Run the verb."""
        try:
            return super().invoke(*arguments)
        except AgentspecError as error:
            show_error(error)
            raise typer.Exit(error.exit_code) from error


app = typer.Typer(
    name="agentspec",
    help="A coding-assistant backend whose speculative decoding knows the repository being edited.",
    cls=_VerbGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in (index, status, serve, connect, lsp, demo, doctor):
    app.command()(verb)
app.command("train-head")(train_head)
app.add_typer(bench.app)
app.add_typer(models.app)
app.add_typer(kernels.app)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"agentspec {__version__}")
        raise typer.Exit


@app.callback()
def agentspec(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """A coding-assistant backend whose speculative decoding knows the repository being edited."""
