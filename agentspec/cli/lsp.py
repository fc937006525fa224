"""`agentspec lsp`: the language server, on stdin and stdout."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from agentspec.cli.options import ConfigOption, local_url


def lsp(
    url: Annotated[
        str | None, typer.Option(help="Server to ask.", show_default="the one agentspec serve starts")
    ] = None,
    debounce: Annotated[
        int, typer.Option(min=0, max=5000, help="Milliseconds without a key before the model is asked.")
    ] = 150,
    max_tokens: Annotated[int, typer.Option(min=1, max=4096, help="Longest inline completion.")] = 96,
    config: ConfigOption = None,
) -> None:
    """Inline completion and edits for editors, as a language server; the key is read from AGENTSPEC_API_KEY."""
    from agentspec.connect.endpoint import KEY_VARIABLE, base_url
    from agentspec.lsp.server import Options, create_server

    root = base_url(url or local_url(config))
    create_server(Options(root, os.environ.get(KEY_VARIABLE), debounce / 1000, max_tokens)).start_io()
