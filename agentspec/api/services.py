"""What every endpoint works with, kept once per application."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, cast

from fastapi import Depends, Request

from agentspec.errors import NotFoundError

if TYPE_CHECKING:
    from agentspec.api.metrics import Metrics
    from agentspec.api.repositories import RepositoryRegistry
    from agentspec.config import Settings
    from agentspec.engines.base import Engine

CALLER = "agentspec.caller"
"""Key of the ASGI scope under which the authentication middleware names the caller."""


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of one application.

    Attributes:
        engine: serves the model.
        settings: as the server was started.
        repositories: what callers registered.
        metrics: what `/metrics` shows.
    """

    engine: Engine
    settings: Settings
    repositories: RepositoryRegistry
    metrics: Metrics

    def require_model(self, name: str | None) -> str:
        """The served model's id, if `name` means it (None does).

        Raises:
            NotFoundError: another model was asked for.
        """
        served = self.engine.model.id
        if name is not None and name != served:
            error = NotFoundError(f"the model '{name}' does not exist here; this server serves '{served}'", "model")
            error.code = "model_not_found"
            raise error
        return served


def services_of(request: Request) -> Services:
    """The services of the application that `request` came to."""
    return cast("Services", request.app.state.services)


def caller_of(request: Request) -> str:
    """Who sent `request`: a digest of its key, or the empty string on a server without keys."""
    return cast("str", request.scope.get(CALLER, ""))


ServicesOf = Annotated["Services", Depends(services_of)]
CallerOf = Annotated[str, Depends(caller_of)]
