"""`/v1/repositories`: which repositories may draft for the caller's requests."""

from __future__ import annotations

from fastapi import APIRouter

from agentspec.api.errors import ERROR_RESPONSES
from agentspec.api.json_body import JsonRoute
from agentspec.api.schemas.repositories import RegisterRequest, RepositoryBody, RepositoryDeleted, RepositoryList
from agentspec.api.services import CallerOf, ServicesOf

router = APIRouter(prefix="/v1/repositories", route_class=JsonRoute, tags=["Repositories"], responses=ERROR_RESPONSES)


@router.post("", status_code=202)
async def register_repository(body: RegisterRequest, services: ServicesOf, caller: CallerOf) -> RepositoryBody:
    """Register a repository and index it in the background; again, to follow changes."""
    return RepositoryBody.of(services.repositories.register(body.path, caller))


@router.get("")
async def list_repositories(services: ServicesOf, caller: CallerOf) -> RepositoryList:
    """The caller's repositories."""
    return RepositoryList(data=[RepositoryBody.of(repository) for repository in services.repositories.list(caller)])


@router.get("/{repository_id}")
async def get_repository(repository_id: str, services: ServicesOf, caller: CallerOf) -> RepositoryBody:
    """One repository, with the progress of its index."""
    return RepositoryBody.of(services.repositories.find(repository_id, caller))


@router.delete("/{repository_id}")
async def delete_repository(repository_id: str, services: ServicesOf, caller: CallerOf) -> RepositoryDeleted:
    """Forget a repository; its index stays on disk."""
    return RepositoryDeleted(id=services.repositories.remove(repository_id, caller).id)
