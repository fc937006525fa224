"""Bearer keys."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING

import structlog
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from agentspec.api.errors import error_response
from agentspec.api.services import CALLER
from agentspec.errors import InvalidRequestError

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.types import ASGIApp, Receive, Scope, Send

OPEN_PATHS = frozenset({"/health", "/ready", "/", "/page.css", "/page.js"})
"""Probes that supervisors send without a key, and the page, which asks for one itself."""

log = structlog.get_logger("agentspec.auth")


class KeyFile:
    """Keys of a file, one a line; empty lines and lines that start with `#` are none. Read again when it changes.

    Only digests are kept in memory. A file that becomes unreadable leaves the keys as they were.

    Raises:
        InvalidRequestError: at construction, when the file cannot be read or holds no key.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = (0, 0)
        self._digests: tuple[bytes, ...] = ()
        try:
            self._reload()
        except OSError as error:
            raise InvalidRequestError(f"key file {path} cannot be read: {error.strerror}", "api_key_file") from error
        if not self._digests:
            raise InvalidRequestError(f"key file {path} holds no key; write one a line", "api_key_file")

    def caller(self, key: bytes) -> str | None:
        """A name for who holds `key`, or None when it is not one of the file's.

        Every key is compared in full, so that the time tells nothing of the keys.
        """
        try:
            self._reload()
        except OSError as error:
            log.warning("key file cannot be read; keys stay as they were", reason=error.strerror)
        digest = hashlib.sha256(key).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return digest.hex() if any(matches) else None

    def _reload(self) -> None:
        status = self._path.stat()
        stamp = (status.st_mtime_ns, status.st_size)
        if stamp == self._stamp:
            return
        lines = (line.strip() for line in self._path.read_bytes().splitlines())
        self._digests = tuple(hashlib.sha256(key).digest() for key in lines if key and not key.startswith(b"#"))
        self._stamp = stamp


class AuthenticationMiddleware:
    """Lets requests pass that bear a known key, in `authorization: Bearer` or `x-api-key`, and names their caller."""

    def __init__(self, app: ASGIApp, keys: KeyFile) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it with 401."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            caller = self._keys.caller(_bearer(Headers(scope=scope)))
            if caller is None:
                refusal = HTTPException(401, "missing or unknown API key; send 'authorization: Bearer <key>'")
                await error_response(refusal, scope["path"])(scope, receive, send)
                return
            scope[CALLER] = caller
        await self._app(scope, receive, send)


def _bearer(headers: Headers) -> bytes:
    """The key in a request's headers, as the bytes that were sent; empty where there is none."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    text = key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
    return text.encode("latin-1")
