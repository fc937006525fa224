"""Bodies of `/v1/repositories`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from agentspec.api.repositories import Repository, State
from agentspec.api.schemas.common import RequestModel


class RegisterRequest(RequestModel):
    """A repository to be indexed."""

    path: Annotated[str, Field(min_length=1, max_length=4096, description="absolute path of its folder")]


class Progress(BaseModel):
    """Files that the build has done, of those that changed."""

    files_done: int
    files_total: int


class RepositoryBody(BaseModel):
    """A registered repository and the state of its index."""

    id: str
    object: Literal["repository"] = "repository"
    path: str
    created: int
    state: State
    progress: Progress
    error: str | None

    @classmethod
    def of(cls, repository: Repository) -> RepositoryBody:
        """The body for `repository` as it is now."""
        return cls(
            id=repository.id,
            path=str(repository.path),
            created=repository.created,
            state=repository.state,
            progress=Progress(files_done=repository.files_done, files_total=repository.files_total),
            error=repository.error,
        )


class RepositoryList(BaseModel):
    """The caller's repositories, oldest first."""

    object: Literal["list"] = "list"
    data: list[RepositoryBody]


class RepositoryDeleted(BaseModel):
    """A repository that is not registered any more."""

    id: str
    object: Literal["repository"] = "repository"
    deleted: Literal[True] = True
