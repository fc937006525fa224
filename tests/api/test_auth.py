"""Bearer keys and CORS."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import httpx
import openai
import pytest

from agentspec.api.middleware.auth import KeyFile
from agentspec.errors import InvalidRequestError
from tests.api.test_errors import HELLO, assert_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.api.conftest import LiveServer

KEYS = "# people\nfirst-key\n\n  second-key  \nkey with spaces\n"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(KEYS)
    return path


@pytest.fixture
def locked(serve: Callable[..., LiveServer], key_file: Path) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=serve(api_key_file=key_file).url) as client:
        yield client


def bearer(key: str) -> dict[str, bytes]:
    return {"authorization": f"Bearer {key}".encode()}


@pytest.mark.parametrize("key", ["first-key", "second-key", "key with spaces"])
def test_known_keys_pass(locked: httpx.Client, key: str) -> None:
    assert locked.get("/v1/models", headers=bearer(key)).status_code == 200
    assert locked.get("/v1/models", headers={"x-api-key": key}).status_code == 200
    assert locked.get("/v1/models", headers={"authorization": f"bearer {key}"}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer("wrong"),
        bearer("first-ke"),
        bearer("first-key2"),
        bearer("# people"),
        {"authorization": "Basic first-key"},
        {"authorization": "first-key"},
        {"x-api-key": ""},
    ],
    ids=str,
)
def test_other_keys_do_not(locked: httpx.Client, headers: dict[str, str]) -> None:
    for method, path in [("GET", "/v1/models"), ("GET", "/metrics"), ("POST", "/tokenize"), ("GET", "/nothing")]:
        response = locked.request(method, path, headers=headers)
        assert_error(response, 401, "invalid_api_key")
        assert response.headers["www-authenticate"] == "Bearer"


def test_sdk_gets_an_authentication_error(serve: Callable[..., LiveServer], key_file: Path) -> None:
    url = f"{serve(api_key_file=key_file).url}/v1"
    with openai.OpenAI(base_url=url, api_key="wrong", max_retries=0) as sdk, pytest.raises(openai.AuthenticationError):
        sdk.models.list()
    with openai.OpenAI(base_url=url, api_key="first-key", max_retries=0) as sdk:
        assert sdk.chat.completions.create(model="scripted-model", messages=HELLO).choices


def test_keys_may_be_any_bytes(locked: httpx.Client, key_file: Path) -> None:
    assert_error(locked.get("/v1/models", headers=bearer("schlüssel")), 401)
    key_file.write_bytes("schlüssel\n".encode() + b"\xff\xfe\n")
    assert locked.get("/v1/models", headers=bearer("schlüssel")).status_code == 200
    assert locked.get("/v1/models", headers={"x-api-key": b"\xff\xfe"}).status_code == 200


def test_probes_need_no_key(locked: httpx.Client) -> None:
    assert locked.get("/health").status_code == 200
    assert locked.get("/ready").status_code == 200


def test_changed_files_are_read_again(locked: httpx.Client, key_file: Path) -> None:
    assert locked.get("/v1/models", headers=bearer("first-key")).status_code == 200
    key_file.write_text("third-key-\n")
    os.utime(key_file, ns=(0, 10**9))
    assert locked.get("/v1/models", headers=bearer("first-key")).status_code == 401
    assert locked.get("/v1/models", headers=bearer("third-key-")).status_code == 200


def test_a_vanished_file_leaves_the_keys_as_they_were(locked: httpx.Client, key_file: Path) -> None:
    key_file.unlink()
    assert locked.get("/v1/models", headers=bearer("first-key")).status_code == 200
    assert locked.get("/v1/models", headers=bearer("wrong")).status_code == 401


def test_an_emptied_file_admits_nobody(locked: httpx.Client, key_file: Path) -> None:
    key_file.write_text("")
    assert locked.get("/v1/models", headers=bearer("first-key")).status_code == 401
    assert locked.get("/v1/models").status_code == 401


@pytest.mark.parametrize("content", [None, "", "# only a comment\n"])
def test_a_server_does_not_start_without_keys_that_were_asked_for(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InvalidRequestError, match="key file"):
        KeyFile(path)


ORIGIN = "http://editor.example"
PREFLIGHT = {
    "origin": ORIGIN,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization",
}


def test_no_cors_by_default(http: httpx.Client) -> None:
    assert "access-control-allow-origin" not in http.get("/v1/models", headers={"origin": ORIGIN}).headers
    assert http.options("/v1/chat/completions", headers=PREFLIGHT).status_code == 405
