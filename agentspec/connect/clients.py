"""Every client that `agentspec connect` knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentspec.connect.agents import AGENTS
from agentspec.connect.editors import EDITORS
from agentspec.errors import NotFoundError

if TYPE_CHECKING:
    from agentspec.connect.recipe import Client

CLIENTS = {client.name: client for client in (*EDITORS, *AGENTS)}
"""Clients by name."""


def find_client(name: str) -> Client:
    """The client that users call `name`.

    Raises:
        NotFoundError: there is none.
    """
    try:
        return CLIENTS[name]
    except KeyError:
        raise NotFoundError(f"no client '{name}' is known; known are {', '.join(CLIENTS)}", "client") from None
