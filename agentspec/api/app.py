"""The application: endpoints, middleware and the life of the engine behind them."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from agentspec import __version__
from agentspec.api.errors import install_error_handlers
from agentspec.api.fim import FimDetector
from agentspec.api.metrics import Metrics
from agentspec.api.middleware.access import HEADER, AccessMiddleware
from agentspec.api.middleware.auth import AuthenticationMiddleware, KeyFile
from agentspec.api.middleware.body_limit import BodyLimitMiddleware
from agentspec.api.middleware.paths import PathMiddleware
from agentspec.api.response_store import ResponseStore
from agentspec.api.routes import chat, completions, edits, fim, health, messages, models, page, props, responses
from agentspec.api.routes import repositories as repository_routes
from agentspec.api.services import Services

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from agentspec.api.repositories import RepositoryRegistry
    from agentspec.config import Settings
    from agentspec.engines.base import Engine


def create_app(engine: Engine, settings: Settings, repositories: RepositoryRegistry) -> FastAPI:
    """The HTTP application over `engine`, an ASGI app to be run by uvicorn.

    Its lifespan starts the engine, unless it is ready already, and stops it.

    Args:
        engine: serves the model.
        settings: `settings.server` decides on keys, origins and limits.
        repositories: what callers registered; the engine asks the same object for their snapshots.

    Raises:
        InvalidRequestError: the key file cannot be used.
    """

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        if not engine.stats().ready:
            await engine.start()
        yield
        await services.responses.close()
        await repositories.close()
        await engine.stop()

    # The interactive documentation pages load scripts from elsewhere; the schema itself is at /openapi.json.
    app = FastAPI(title="agentspec", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.services = services = Services(
        engine, settings, repositories, Metrics(engine), ResponseStore(), FimDetector(engine)
    )
    install_error_handlers(app)
    app.state.routers = [
        routes.router
        for routes in (
            chat,
            completions,
            edits,
            fim,
            messages,
            responses,
            models,
            props,
            repository_routes,
            health,
            page,
        )
    ]
    for router in app.state.routers:
        app.include_router(router)
    _add_middleware(app, services)
    return app


def _add_middleware(app: FastAPI, services: Services) -> None:
    """From the inside out: what is added last sees a request first."""
    server = services.settings.server
    app.add_middleware(BodyLimitMiddleware, limit=server.max_body_bytes)
    if server.api_key_file is not None:
        app.add_middleware(AuthenticationMiddleware, keys=KeyFile(server.api_key_file))
    if server.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=server.cors_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=[HEADER, "retry-after"],
        )
    app.add_middleware(AccessMiddleware, metrics=services.metrics)
    app.add_middleware(PathMiddleware)
