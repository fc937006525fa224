"""What every endpoint works with, kept once per application."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, cast

from fastapi import Depends, Request

from agentspec.api import history
from agentspec.errors import NotFoundError

if TYPE_CHECKING:
    from agentspec.api.fim import FimDetector
    from agentspec.api.metrics import Metrics
    from agentspec.api.repositories import RepositoryRegistry
    from agentspec.api.response_store import ResponseStore
    from agentspec.config import Settings
    from agentspec.engines.base import Engine

CALLER = "agentspec.caller"
"""Key of the ASGI scope under which the authentication middleware names the caller."""


class ModelNotFoundError(NotFoundError):
    """A model was asked for that this server does not serve."""

    code = "model_not_found"


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of one application.

    Attributes:
        engine: serves the model.
        settings: as the server was started.
        repositories: what callers registered.
        metrics: what `/metrics` shows.
        responses: what the Responses API keeps.
        fim: knows how the model wants fill-in-the-middle prompts written.
    """

    engine: Engine
    settings: Settings
    repositories: RepositoryRegistry
    metrics: Metrics
    responses: ResponseStore
    fim: FimDetector

    def require_model(self, name: str | None) -> str:
        """The name under which the served model answers: `name` where that is one of its names, its id for None.

        Raises:
            NotFoundError: another model was asked for.
        """
        served = self.engine.model.id
        if name is None or name == served:
            return served
        if any(fnmatchcase(name, alias) for alias in self.settings.server.model_aliases):
            return name
        raise ModelNotFoundError(f"the model '{name}' does not exist here; this server serves '{served}'", "model")


# Coroutines, since FastAPI sends plain functions to a thread, which costs more than all else it does for a request.
async def services_of(request: Request) -> Services:
    """The services of the application that `request` came to."""
    return cast("Services", request.app.state.services)


async def caller_of(request: Request) -> str:
    """Who sent `request`: a digest of its key, or the empty string on a server without keys."""
    caller = cast("str", request.scope.get(CALLER, ""))
    history.CALLER.set(caller)
    return caller


ServicesOf = Annotated["Services", Depends(services_of)]
CallerOf = Annotated[str, Depends(caller_of)]
