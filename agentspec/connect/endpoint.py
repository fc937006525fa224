"""The server that a client is to be connected to."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from agentspec.errors import EngineUnavailableError, ForbiddenError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

KEY_VARIABLE = "AGENTSPEC_API_KEY"
"""Environment variable that holds the server's key, for this command and for every client that reads one."""

PLACEHOLDER_KEY = "agentspec"
"""What clients send that insist on a key although the server asks for none."""

TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A served model and where it is served.

    Attributes:
        root: base URL without `/v1` and without a trailing slash.
        model: name of the served model.
        context_length: tokens that prompt and completion share.
        needs_key: whether the server asks for a key.
        inline: whether the client shall use the model for inline completion too.
    """

    root: str
    model: str
    context_length: int
    needs_key: bool = False
    inline: bool = False

    @property
    def v1(self) -> str:
        """Base URL of OpenAI's API."""
        return f"{self.root}/v1"

    @property
    def max_output_tokens(self) -> int:
        """Tokens that a client may reserve for an answer: half of the context, the other half is the prompt's."""
        return self.context_length // 2

    @property
    def key_notes(self) -> tuple[str, ...]:
        """What a person has to do about the key, for clients that read it from the environment."""
        return (f"Set {KEY_VARIABLE} in the environment to one of the server's keys.",) if self.needs_key else ()


def find_endpoint(url: str, inline: bool = False) -> Endpoint:
    """Ask the server at `url` what it serves; the key is read from the environment.

    Raises:
        InvalidRequestError: `url` is no http URL.
        ForbiddenError: the server wants another key.
        EngineUnavailableError: nothing answers there, or not as agentspec does.
    """
    root = base_url(url)
    answer = _ask(root, None)
    needs_key = answer.status_code == httpx.codes.UNAUTHORIZED
    if needs_key:
        answer = _ask(root, os.environ.get(KEY_VARIABLE))
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        raise ForbiddenError(f"the server at {root} asks for a key; set {KEY_VARIABLE} to one of its keys")
    model = _first_model(root, answer)
    return Endpoint(root, str(model["id"]), int(model["max_model_len"]), needs_key, inline)


def base_url(url: str) -> str:
    """`url` without `/v1` and trailing slashes.

    Raises:
        InvalidRequestError: it is no http URL.
    """
    root = url.rstrip("/").removesuffix("/v1").rstrip("/")
    if not root.startswith(("http://", "https://")):
        raise InvalidRequestError(f"'{url}' is no URL; expected one like http://127.0.0.1:8642", "url")
    return root


def _ask(root: str, key: str | None) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        return httpx.get(f"{root}/v1/models", headers=headers, timeout=TIMEOUT_SECONDS)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise EngineUnavailableError(
            f"no server answers at {root} ({error}); start one with agentspec serve, or name another with --url"
        ) from error


def _first_model(root: str, answer: httpx.Response) -> Mapping[str, Any]:
    try:
        model = answer.raise_for_status().json()["data"][0]
        if {"id", "max_model_len"} <= set(model):
            return dict(model)
    except (httpx.HTTPStatusError, ValueError, LookupError, TypeError) as error:
        raise EngineUnavailableError(f"what answers at {root} is no agentspec server: {error}") from error
    raise EngineUnavailableError(f"what answers at {root} is no agentspec server: it lists no max_model_len")
