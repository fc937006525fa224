"""`/v1/state` and the page at `/`, as far as no browser is needed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import httpx
import pytest

from agentspec.api.history import CALLER, CALLERS, RECEIPTS, SPAN_SECONDS, SPANS, History
from agentspec.engines.base import Receipt

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.api.conftest import LiveServer

PROMPT = "a secret prompt"


def receipt(tokens: int = 4) -> Receipt:
    return Receipt(10, 5, tokens, 2, {"repository": 6, "edit": 1}, {"repository": 3})


def test_spans_add_up_and_old_ones_go() -> None:
    now = 1_000_000.0
    history = History(lambda: now)
    history.add("stop", receipt())
    history.add("stop", receipt(6))
    now += SPAN_SECONDS
    history.add("length", receipt())
    first, second = history.spans()
    assert (first.begin, first.choices, first.completion_tokens, first.verify_steps) == (1_000_000, 2, 10, 4)
    assert first.accepted == {"repository": 6}
    assert first.drafted == {"repository": 12, "edit": 2}
    assert (second.begin, second.choices) == (1_000_000 + SPAN_SECONDS, 1)
    now += SPANS * SPAN_SECONDS + 1
    assert history.spans() == []


def test_memory_is_bounded() -> None:
    now = 0.0
    history = History(lambda: now)
    for number in range(SPANS + RECEIPTS + 10):
        now = float(number * SPAN_SECONDS)
        history.add("stop", receipt(number))
    assert len(history.spans()) <= SPANS
    assert [choice.receipt.completion_tokens for choice in history.choices("")][:2] == [number, number - 1]
    assert len(history.choices("")) == RECEIPTS
    for number in range(CALLERS):
        token = CALLER.set(f"caller-{number}")
        history.add("stop", receipt())
        CALLER.reset(token)
    assert history.choices("") == []
    assert len(history.choices("caller-0")) == 1


def test_state_tells_counts_and_no_text(serve: Callable[..., LiveServer], allowed_root: Path) -> None:
    server = serve()
    with httpx.Client(base_url=server.url) as client:
        before = client.get("/v1/state").json()
        assert (before["history"], before["receipts"], before["repositories"]) == ([], [], [])
        client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 40}).raise_for_status()
        client.post("/v1/repositories", json={"path": str(allowed_root)}).raise_for_status()
        answer = client.get("/v1/state")
    state = answer.json()
    assert state["model"] == "scripted-model"
    assert state["engine"]["ready"] is True
    [span] = state["history"]
    [past] = state["receipts"]
    assert span["completion_tokens"] == past["receipt"]["completion_tokens"] > 0
    assert past["finish_reason"] == "stop"
    assert [repository["path"] for repository in state["repositories"]] == [str(allowed_root)]
    assert PROMPT not in answer.text
    assert server.engine.reply.strip() not in answer.text


@pytest.mark.parametrize("stream", [False, True])
def test_receipts_are_shown_to_their_caller_only(
    serve: Callable[..., LiveServer], tmp_path: Path, stream: bool
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one\ntwo\n")
    server = serve(api_key_file=keys)
    with httpx.Client(base_url=server.url) as client:
        assert client.get("/v1/state").status_code == 401
        one, two = ({"authorization": f"Bearer {key}"} for key in ("one", "two"))
        body = {"messages": [{"role": "user", "content": PROMPT}], "stream": stream}
        client.post("/v1/chat/completions", json=body, headers=one).raise_for_status()
        assert len(client.get("/v1/state", headers=one).json()["receipts"]) == 1
        state = client.get("/v1/state", headers=two).json()
    assert state["receipts"] == []
    assert len(state["history"]) == 1


def test_the_page_is_served_without_a_key_and_loads_nothing_from_elsewhere(
    serve: Callable[..., LiveServer], tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("sesame\n")
    server = serve(api_key_file=keys)
    with httpx.Client(base_url=server.url) as client:
        page = client.get("/")
        assert page.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        linked = re.findall(r'(?:href|src)="([^"]+)"', page.text)
        assert {"page.css", "page.js"} <= set(linked)
        for link in linked:
            assert not link.startswith(("http:", "https:", "//"))
        for name, kind in (("page.css", "text/css"), ("page.js", "text/javascript")):
            answer = client.get(f"/{name}")
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith(kind)
            assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", answer.text)


def test_the_page_is_no_part_of_the_schema(http: httpx.Client) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    assert "/" not in paths
    assert "/v1/state" in paths
