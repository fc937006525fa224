"""The API over the embedded engine and real indexes: what only shows when all parts are together."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from typing import TYPE_CHECKING

import httpx
import openai
import pytest

from agentspec.api.app import create_app
from agentspec.api.indexing import StoreIndexer
from agentspec.api.repositories import RepositoryRegistry
from agentspec.config import Settings
from agentspec.engines.local.engine import LocalEngine
from tests.api.conftest import LiveServer
from tests.api.test_disconnect import MOST_SECONDS_TO_FREE
from tests.api.test_errors import CHAT, COMPLETIONS, HELLO, assert_error
from tests.api.test_repositories import REPOSITORIES, wait_for_state
from tests.engines.local.tiny_target import load_tiny, make_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


PLANTED = "def planted_function(first, second):\n    return planted_other(first) * second\n"
FROM_REPOSITORY = {"repository", "edit"}
"""Draft sources that read the repository."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("local")


@pytest.fixture(scope="module")
def repository(home: Path) -> Path:
    path = home / "allowed" / "project"
    path.mkdir(parents=True)
    (path / "secret.py").write_text(PLANTED)
    subprocess.run(["git", "init", "--quiet", path], check=True)
    return path


@pytest.fixture(scope="module")
def live(home: Path, repository: Path) -> Iterator[LiveServer]:
    folder = make_folder(home / "model")
    target = load_tiny(folder)
    settings = Settings.load(
        index={"directory": home / "index", "allowed_roots": (repository.parent,)},
        engine={"kv_tokens": 16_000, "max_running": 4},
    )
    registry = RepositoryRegistry(settings.index.allowed_roots, StoreIndexer(str(folder), settings.index))
    engine = LocalEngine(settings, repositories=registry, load=lambda _: target)
    with LiveServer(create_app(engine, settings, registry), engine, None, registry) as server:
        yield server


@pytest.fixture(scope="module")
def client(live: LiveServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=live.url, timeout=30) as client:
        yield client


def ask(client: httpx.Client, **fields: object) -> dict[str, object]:
    body = {"prompt": "def planted(", "max_tokens": 32, "seed": 5, "ignore_eos": True, "agentspec": {"receipt": True}}
    response = client.post(COMPLETIONS, json=body | fields)
    assert response.status_code == 200, response.text
    return response.json()


def test_a_predicted_output_is_accepted_and_changes_nothing(client: httpx.Client) -> None:
    plain = ask(client, agentspec={"receipt": True, "speculation": False})
    assert plain["agentspec"]["receipts"][0]["speculation"] is False
    text = plain["choices"][0]["text"]
    predicted = ask(client, prediction={"type": "content", "content": text})
    assert predicted["choices"][0]["text"] == text
    receipt = predicted["agentspec"]["receipts"][0]
    details = predicted["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] == receipt["accepted"].get("prediction", 0)
    assert sum(receipt["accepted"].values()) > 0
    assert receipt["verify_steps"] < plain["agentspec"]["receipts"][0]["verify_steps"]


def test_streamed_and_whole_answers_agree(live: LiveServer) -> None:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as sdk:
        arguments = {"model": "tiny", "messages": HELLO, "seed": 3, "max_tokens": 24, "n": 2, "logprobs": True}
        whole = sdk.chat.completions.create(**arguments)
        texts, finishes, tokens = ["", ""], ["", ""], [[], []]
        for chunk in sdk.chat.completions.create(**arguments, stream=True):
            choice = chunk.choices[0]
            texts[choice.index] += choice.delta.content or ""
            finishes[choice.index] = choice.finish_reason or finishes[choice.index]
            tokens[choice.index] += choice.logprobs.content if choice.logprobs else []
        assert texts == [choice.message.content for choice in whole.choices]
        assert finishes == [choice.finish_reason for choice in whole.choices]
        assert [[t.token for t in choice] for choice in tokens] == [
            [t.token for t in choice.logprobs.content] for choice in whole.choices
        ]


def test_the_prefix_cache_shows_in_usage(client: httpx.Client) -> None:
    prompt = "a prompt that no other test has " * 8
    first = ask(client, prompt=prompt)["usage"]
    second = ask(client, prompt=prompt)["usage"]
    assert first["prompt_tokens_details"]["cached_tokens"] < second["prompt_tokens_details"]["cached_tokens"]
    assert second["prompt_tokens_details"]["cached_tokens"] <= second["prompt_tokens"]


def drafted(client: httpx.Client, **fields: object) -> tuple[set[str], list[str]]:
    """Sources that drafted from the repository after a prompt out of its file, and the receipt's warnings."""
    fields = {"prompt": PLANTED.partition("first")[0], "edited_path": "secret.py"} | fields
    receipt = ask(client, **fields)["agentspec"]["receipts"][0]
    return FROM_REPOSITORY.intersection(receipt["drafted"]), receipt["warnings"]


def test_a_registered_repository_drafts_for_requests_that_name_it(client: httpx.Client, repository: Path) -> None:
    registered = client.post(REPOSITORIES, json={"path": str(repository)}).json()
    assert wait_for_state(client, registered["id"], "ready")["progress"]["files_total"] == 1
    for name in (registered["id"], str(repository)):
        answers = [drafted(client, repository=name, seed=seed) for seed in range(5, 10)]
        assert any(sources for sources, _ in answers)
        assert not any(warnings for _, warnings in answers)
    assert not any(drafted(client, seed=seed)[0] for seed in range(5, 10))


def test_a_lost_index_is_a_warning_until_it_is_built_again(client: httpx.Client, home: Path, repository: Path) -> None:
    registered = client.post(REPOSITORIES, json={"path": str(repository)}).json()
    wait_for_state(client, registered["id"], "ready")
    shutil.rmtree(home / "index")
    sources, [warning] = drafted(client, repository=registered["id"])
    assert not sources
    assert "index" in warning
    client.post(REPOSITORIES, json={"path": str(repository)})
    wait_for_state(client, registered["id"], "ready")
    # A request whose drafting takes long, as the first one's may, pauses it; which texts have such drafts is chance.
    answers = [drafted(client, repository=registered["id"], seed=seed) for seed in range(5, 10)]
    assert any(sources for sources, _ in answers)
    assert not any(warnings for _, warnings in answers)


def test_leaving_frees_the_slot(live: LiveServer) -> None:
    seconds = []
    for stream in (True, False):
        body = {"prompt": "x", "max_tokens": 400, "ignore_eos": True, "stream": stream, "n": 3}
        with httpx.Client(base_url=live.url) as http:
            request = http.build_request("POST", COMPLETIONS, json=body, timeout=0.15)
            with contextlib.suppress(httpx.ReadTimeout), contextlib.closing(http.send(request, stream=True)) as answer:
                next(answer.iter_bytes())
                assert live.engine.stats().running == 1
                left = time.perf_counter()
            if not stream:
                left = time.perf_counter()
        while live.engine.stats().running:
            time.sleep(0.001)
        seconds.append(time.perf_counter() - left)
    assert max(seconds) < MOST_SECONDS_TO_FREE


def test_bad_input_is_answered_and_the_next_request_too(client: httpx.Client) -> None:
    assert_error(client.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 5000}), 400, "context_length_exceeded")
    assert_error(client.post(COMPLETIONS, json={"prompt": [10**6]}), 400, param="prompt")
    assert_error(client.post(COMPLETIONS, json={"prompt": "x", "logit_bias": {"999999": 1}}), 400)
    assert_error(client.post(CHAT, json={"messages": HELLO, "chat_template_kwargs": {"chat_template": "x"}}), 400)
    assert_error(client.post("/detokenize", json={"tokens": [10**6]}), 400, param="tokens")
    assert ask(client)["choices"][0]["text"]
