"""Health, metrics, logs, models, tokens and keepalive: what operators and their tools rely on."""

from __future__ import annotations

import io
import sys
import time
from typing import TYPE_CHECKING

import httpx
import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families

from agentspec.api.logs import configure_logs
from agentspec.engines.base import Chunk, Receipt
from tests.api.test_disconnect import wait_for
from tests.api.test_errors import CHAT, COMPLETIONS, HELLO, assert_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from openai import OpenAI

    from tests.api.conftest import LiveServer
    from tests.api.scripted_engine import ScriptedEngine

PATIENCE_SECONDS = 10.0
ANSWERED = "agentspec_http_requests_total{method=POST}{route=/v1/chat/completions}{status=200}"
UNMATCHED = "agentspec_http_requests_total{method=GET}{route=unmatched}{status=404}"


def samples(text: str) -> dict[str, float]:
    """Every sample of a scrape by `name{label=value,...}`."""
    return {
        sample.name + "".join(f"{{{key}={value}}}" for key, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scrape(http: httpx.Client, counter: str, requests: int) -> dict[str, float]:
    """A scrape in which `counter` has reached `requests`, or the last one before patience ends.

    A request is counted right after its last byte went out, which its client may see a moment earlier.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        found = samples(http.get("/metrics").text)
        if found.get(counter, 0) >= requests or time.monotonic() > deadline:
            return found
        time.sleep(0.01)


def test_health_and_readiness(http: httpx.Client, engine: ScriptedEngine) -> None:
    assert http.get("/health").json() == {"status": "ok"}
    assert http.get("/ready").json() == {"status": "ready", "running": 0, "waiting": 0}
    engine.ready = False
    assert http.get("/health").status_code == 200
    response = http.get("/ready")
    assert_error(response, 503, "engine_unavailable")
    assert response.headers["retry-after"] == "1"
    engine.ready = True


def test_models(sdk: OpenAI) -> None:
    model = sdk.models.list().data[0]
    assert (model.id, model.model_extra["context_length"], model.model_extra["max_model_len"]) == (
        "scripted-model",
        4096,
        4096,
    )
    assert sdk.models.retrieve("scripted-model") == model


def test_tokenize(http: httpx.Client) -> None:
    answer = http.post("/tokenize", json={"prompt": "ab", "model": "scripted-model"}).json()
    assert answer == {"tokens": [97, 98], "count": 2, "max_model_len": 4096}
    assert http.post("/tokenize", json={"content": "ab"}).json() == answer
    chat = http.post("/tokenize", json={"messages": [{"role": "user", "content": "a"}]}).json()
    assert chat["count"] == len("<user>a")
    assert_error(http.post("/tokenize", json={}), 400)
    assert_error(http.post("/tokenize", json={"prompt": "a", "content": "b"}), 400)
    assert_error(http.post("/tokenize", json={"prompt": "a", "model": "other"}), 404, "model_not_found")


def test_detokenize(http: httpx.Client) -> None:
    assert http.post("/detokenize", json={"tokens": [97, 98]}).json() == {"prompt": "ab", "content": "ab"}
    assert_error(http.post("/detokenize", json={"tokens": [2**31 - 1]}), 400, param="tokens")
    assert_error(http.post("/detokenize", json={"tokens": [-1]}), 400)


def test_metrics_hold_every_receipt(serve: Callable[..., LiveServer]) -> None:
    server = serve()
    server.engine.script = lambda request: [
        Chunk(0, "abc", (1, 2, 3)),
        0.06,
        Chunk(0, "de", (4, 5)),
        Chunk(
            0,
            finish_reason="stop",
            receipt=Receipt(
                prompt_tokens=10,
                cached_tokens=6,
                completion_tokens=5,
                verify_steps=2,
                drafted={"repository": 4, "prediction": 2},
                accepted={"repository": 2, "prediction": 1},
                prefill_seconds=0.5,
                draft_seconds=0.25,
                verify_seconds=0.75,
                queue_seconds=0.2,
            ),
        ),
    ]
    with httpx.Client(base_url=server.url) as http:
        for stream in (False, True):
            http.post(CHAT, json={"messages": HELLO, "stream": stream})
        found = scrape(http, ANSWERED, 2)
    expected = {
        "agentspec_choices_total{finish_reason=stop}": 2,
        "agentspec_prompt_tokens_total": 20,
        "agentspec_cached_prompt_tokens_total": 12,
        "agentspec_completion_tokens_total{source=repository}": 4,
        "agentspec_completion_tokens_total{source=prediction}": 2,
        "agentspec_completion_tokens_total{source=target}": 4,
        "agentspec_drafted_tokens_total{source=repository}": 8,
        "agentspec_drafted_tokens_total{source=prediction}": 4,
        "agentspec_verify_steps_total": 4,
        "agentspec_prefill_seconds_total": 1.0,
        "agentspec_draft_seconds_total": 0.5,
        "agentspec_verify_seconds_total": 1.5,
        "agentspec_queue_seconds_sum": 0.4,
        "agentspec_time_to_first_token_seconds_count": 2,
        "agentspec_inter_token_seconds_count": 2,
        "agentspec_tokens_per_step_count": 2,
        "agentspec_tokens_per_step_sum": 4,
        "agentspec_running_requests": 0,
        "agentspec_kv_tokens_total": 4096,
        ANSWERED: 2,
    }
    assert {name: found.get(name) for name in expected} == pytest.approx(expected)
    assert 0.06 <= found["agentspec_inter_token_seconds_sum"] < 0.5, "two gaps of 60 ms, two tokens each"


def test_unknown_paths_make_one_label(serve: Callable[..., LiveServer]) -> None:
    with httpx.Client(base_url=serve().url) as http:
        for number in range(5):
            http.get(f"/scan/{number}")
        found = scrape(http, UNMATCHED, 5)
    assert found[UNMATCHED] == 5


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    configure_logs(as_json=True)
    monkeypatch.undo()
    yield stream
    structlog.reset_defaults()


def test_logs_hold_no_prompt_no_completion_and_no_key(
    http: httpx.Client, engine: ScriptedEngine, log: io.StringIO
) -> None:
    engine.reply = "completion-canary"
    headers = {"authorization": "Bearer key-canary", "x-request-id": "request-7"}
    body = {"messages": [{"role": "user", "content": "prompt-canary"}], "user": "user-canary"}
    assert http.post(f"{CHAT}?query=canary", json=body, headers=headers).status_code == 200
    http.post(CHAT, json=body | {"n": "number-canary"}, headers=headers)
    engine.script = lambda request: [RuntimeError("cause of the failure")]
    http.post(COMPLETIONS, json={"prompt": "prompt-canary"}, headers=headers)
    wait_for(lambda: log.getvalue().count('"event": "request"') == 3)
    text = log.getvalue()
    assert '"route": "/v1/chat/completions"' in text
    assert '"request_id": "request-7"' in text
    assert "cause of the failure" in text
    assert "canary" not in text


def test_no_keepalive_from_a_stuck_engine(serve: Callable[..., LiveServer]) -> None:
    server = serve(keepalive_seconds=0.05)
    server.engine.progress = 17
    server.engine.script = lambda request: [0.3, Chunk(0, "def", (1, 2, 3)), Chunk(0, finish_reason="stop")]
    with httpx.Client(base_url=server.url) as http:
        assert "keepalive" not in http.post(CHAT, json={"messages": HELLO, "stream": True}).text


def test_errors_after_a_keepalive_come_inside_the_stream(serve: Callable[..., LiveServer]) -> None:
    server = serve(keepalive_seconds=0.05)
    server.engine.script = lambda request: [0.2, ValueError("secret")]
    with httpx.Client(base_url=server.url) as http:
        response = http.post(CHAT, json={"messages": HELLO, "stream": True})
    assert response.status_code == 200
    assert '"code":"internal_error"' in response.text
    assert "secret" not in response.text


def test_a_fast_stream_gets_no_comments(http: httpx.Client) -> None:
    assert ": " not in http.post(CHAT, json={"messages": HELLO, "stream": True}).text.replace("data: ", "").replace(
        "): \\n", ""
    )


def test_many_streams_at_once(serve: Callable[..., LiveServer]) -> None:
    import anyio  # noqa: PLC0415

    server = serve()
    server.engine.delay = 0.002

    async def run() -> list[str]:
        texts: list[str] = []
        async with httpx.AsyncClient(base_url=server.url, limits=httpx.Limits(max_connections=50)) as http:

            async def one(number: int) -> None:
                response = await http.post(CHAT, json={"messages": HELLO, "stream": bool(number % 2), "n": 2})
                assert response.status_code == 200
                texts.append(response.text)

            async with anyio.create_task_group() as group:
                for number in range(50):
                    group.start_soon(one, number)
        return texts

    begun = time.monotonic()
    assert len(anyio.run(run)) == 50
    assert not server.engine.running
    assert time.monotonic() - begun < 10
