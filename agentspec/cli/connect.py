"""`agentspec connect`: the settings that make a client use the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from agentspec.cli.console import messages, output, print_json
from agentspec.cli.options import ConfigOption, JsonOption, local_url
from agentspec.errors import InvalidRequestError

if TYPE_CHECKING:
    from agentspec.connect.recipe import Client, Recipe


def connect(
    client: Annotated[
        str | None, typer.Argument(help="Client to connect; none: list them.", show_default=False)
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="Server to connect it to.", show_default="the one agentspec serve starts")
    ] = None,
    inline: Annotated[
        bool, typer.Option("--inline", help="For inline completion too; needs a model that fills in the middle.")
    ] = False,
    write: Annotated[
        bool,
        typer.Option("--write", help="Merge into the client's files, keeping a copy of each, instead of printing."),
    ] = False,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Print or write the configuration of an editor or agent; the server must be running."""
    from agentspec.connect.clients import find_client
    from agentspec.connect.endpoint import find_endpoint

    if client is None:
        _list(json)
        return
    chosen = find_client(client)
    recipe = chosen.recipe(find_endpoint(url or local_url(config), inline))
    if write:
        _write(chosen, recipe)
    elif json:
        _print_json(recipe)
    else:
        _print(recipe)


def _list(as_json: bool) -> None:
    from rich.table import Table

    from agentspec.connect.clients import CLIENTS

    if as_json:
        print_json([{"name": client.name, "title": client.title} for client in CLIENTS.values()])
        return
    table = Table("client", "what it is")
    for client in CLIENTS.values():
        table.add_row(client.name, client.title)
    output().print(table)


def _print(recipe: Recipe) -> None:
    """Texts go to stdout, all that is said about them to stderr."""
    from agentspec.connect.files import render

    for file in recipe.files:
        _say(f"{file.path}:")
        print(render(file), end="", flush=True)
    for note in recipe.notes:
        _say(note)


def _print_json(recipe: Recipe) -> None:
    from agentspec.connect.files import render

    files = [{"path": file.path, "format": file.format, "text": render(file)} for file in recipe.files]
    print_json({"files": files, "notes": recipe.notes})


def _write(client: Client, recipe: Recipe) -> None:
    from agentspec.connect.files import write

    if not all(file.can_be_written for file in recipe.files):
        raise InvalidRequestError(
            f"{client.title} keeps its settings where they cannot be merged; leave --write off and paste what is shown"
        )
    for file in recipe.files:
        path, backup = write(file)
        print(f"{path}" + (f" (before: {backup})" if backup else ""))
    for note in recipe.notes:
        _say(note)


def _say(text: str) -> None:
    messages().print(text, markup=False, soft_wrap=True)
