"""`/props`, by which llama.cpp's clients learn of the server."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel

from agentspec import __version__
from agentspec.api.errors import ERROR_RESPONSES
from agentspec.api.services import ServicesOf

router = APIRouter(tags=["Model"], responses=ERROR_RESPONSES)


class GenerationSettings(BaseModel):
    """Limits of one request."""

    n_ctx: int


class Properties(BaseModel):
    """What llama.cpp's clients read of a server, under its names."""

    default_generation_settings: GenerationSettings
    total_slots: int
    model_alias: str
    build_info: str


@router.get("/props")
async def get_properties(services: ServicesOf) -> Properties:
    """The served model and the limits of this server."""
    return Properties(
        default_generation_settings=GenerationSettings(n_ctx=services.engine.model.context_length),
        total_slots=services.settings.engine.max_running,
        model_alias=services.engine.model.id,
        build_info=f"agentspec {__version__}",
    )
