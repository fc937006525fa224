"""`agentspec bench`: how much drafting is worth, on recorded edits and end to end."""

import typer

from agentspec.cli.bench_edit import edit
from agentspec.cli.bench_replay import replay

app = typer.Typer(name="bench", help="Measure drafting: on recorded edits, and end to end.", no_args_is_help=True)
app.command()(replay)
app.command()(edit)
