"""Base URLs as people write them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

VERSION = "/v1"

UNVERSIONED = frozenset({"/chat/completions", "/completions", "/models", "/messages", "/responses"})
"""Paths that clients ask for when their base URL lacks the version."""


class PathMiddleware:
    """Forgives a missing or doubled `/v1`, doubled slashes, and a trailing slash."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request under the path that it means."""
        if scope["type"] == "http":
            path = meant(scope["path"])
            scope = {**scope, "path": path, "raw_path": path.encode()}
        await self._app(scope, receive, send)


def meant(path: str) -> str:
    """The path of this server that `path` means."""
    while "//" in path:
        path = path.replace("//", "/")
    while path.startswith(f"{VERSION}{VERSION}/"):
        path = path.removeprefix(VERSION)
    if len(path) > 1:
        path = path.rstrip("/")
    return VERSION + path if path in UNVERSIONED else path
