"""Base URLs as people write them, other names of the model, and what clients read of the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from agentspec.api.middleware.paths import meant
from tests.api.test_errors import CHAT, HELLO, assert_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.api.conftest import LiveServer


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", "/"),
        ("//", "/"),
        ("/health/", "/health"),
        ("/v1/v1/v1/models", "/v1/models"),
        ("/models/", "/v1/models"),
        ("/v1/v1", "/v1/v1"),
        ("/v1x/v1/models", "/v1x/v1/models"),
        ("/v1/models/v1/models", "/v1/models/v1/models"),
    ],
)
def test_paths(path: str, expected: str) -> None:
    assert meant(path) == expected


def test_keys_are_asked_for_whatever_the_path_looks_like(serve: Callable[..., LiveServer], tmp_path: object) -> None:
    keys = tmp_path / "keys"
    keys.write_text("key\n")
    url = serve(api_key_file=keys).url
    for path in ("/v1/models", "//v1/models", "/v1/v1/models/", "/models", "/health/../v1/models", "/health/x"):
        assert_error(httpx.get(url + path), 401)
    assert httpx.get(f"{url}//health/").status_code == 200


def test_aliases(serve: Callable[..., LiveServer]) -> None:
    server = serve(model_aliases=("Fast-Apply-7B", "claude-*"))
    with httpx.Client(base_url=server.url) as http:
        for name in ("Fast-Apply-7B", "claude-any-4"):
            answer = http.post(CHAT, json={"messages": HELLO, "model": name})
            assert answer.json()["model"] == name
            assert http.get(f"/v1/models/{name}").json()["id"] == name
        for name in ("fast-apply-7b", "Fast-Apply-70B", "claude"):
            assert_error(http.post(CHAT, json={"messages": HELLO, "model": name}), 404, "model_not_found")
        assert [model["id"] for model in http.get("/v1/models").json()["data"]] == ["scripted-model", "Fast-Apply-7B"]


def test_properties(http: httpx.Client) -> None:
    properties = http.get("/props").json()
    assert properties["default_generation_settings"]["n_ctx"] == 4096
    assert properties["model_alias"] == "scripted-model"
    assert properties["total_slots"] == 8
