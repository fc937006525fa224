"""`/health`, `/ready` and `/metrics`, for supervisors and dashboards."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from starlette.responses import Response

from agentspec.api.errors import ERROR_RESPONSES
from agentspec.api.services import ServicesOf
from agentspec.errors import EngineUnavailableError

router = APIRouter(tags=["Health"], responses=ERROR_RESPONSES)


class Health(BaseModel):
    """The server answers."""

    status: Literal["ok"] = "ok"


class Readiness(BaseModel):
    """The engine serves requests; how busy it is."""

    status: Literal["ready"] = "ready"
    running: int
    waiting: int


@router.get("/health")
async def health() -> Health:
    """Whether the server is alive; asks for no key."""
    return Health()


@router.get("/ready")
async def ready(services: ServicesOf) -> Readiness:
    """Whether requests are served now, else 503; asks for no key."""
    stats = services.engine.stats()
    if not stats.ready:
        raise EngineUnavailableError("the engine is not ready", retry_after=1.0)
    return Readiness(running=stats.running, waiting=stats.waiting)


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(services: ServicesOf) -> Response:
    """Metrics in Prometheus's text format."""
    return Response(generate_latest(services.metrics.registry), media_type=CONTENT_TYPE_LATEST)
