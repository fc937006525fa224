"""The page at `/`, and the state that it shows."""

from __future__ import annotations

import time
from importlib.resources import files

from fastapi import APIRouter
from starlette.responses import Response

from agentspec import __version__
from agentspec.api.errors import ERROR_RESPONSES
from agentspec.api.history import SPAN_SECONDS
from agentspec.api.schemas.repositories import RepositoryBody
from agentspec.api.schemas.state import EngineState, PastChoiceBody, SpanBody, State
from agentspec.api.services import CallerOf, ServicesOf
from agentspec.errors import EngineUnavailableError

router = APIRouter(tags=["Page"], responses=ERROR_RESPONSES)

FILES = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
"""Files of the page by path; none of them holds anything that a key protects."""

HEADERS = {
    # The page loads nothing from elsewhere, runs nothing but its own script, and is shown in no frame.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


@router.get("/v1/state")
async def get_state(services: ServicesOf, caller: CallerOf) -> State:
    """The engine now, the caller's repositories and receipts, and counts of the last hour."""
    stats = services.engine.stats()
    try:
        model = services.engine.model
    except EngineUnavailableError:
        model = None
    history = services.metrics.history
    return State(
        version=__version__,
        time=time.time(),
        model=model.id if model else None,
        context_length=model.context_length if model else None,
        engine=EngineState(
            kind=services.settings.engine.kind,
            ready=stats.ready,
            running=stats.running,
            waiting=stats.waiting,
            kv_tokens_used=stats.kv_tokens_used,
            kv_tokens_total=stats.kv_tokens_total,
        ),
        repositories=[RepositoryBody.of(repository) for repository in services.repositories.list(caller)],
        span_seconds=SPAN_SECONDS,
        history=[SpanBody.of(span) for span in history.spans()],
        receipts=[PastChoiceBody.of(choice) for choice in history.choices(caller)],
    )


def _add_file(path: str, name: str, media_type: str) -> None:
    content = (files("agentspec.api") / "page" / name).read_bytes()

    @router.get(path, include_in_schema=False)
    async def get_file() -> Response:
        return Response(content, media_type=media_type, headers=HEADERS)


for _path, (_name, _media_type) in FILES.items():
    _add_file(_path, _name, _media_type)
