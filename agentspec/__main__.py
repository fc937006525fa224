"""`python -m agentspec` is the `agentspec` command."""

from agentspec.cli.main import app

app(prog_name="agentspec")
