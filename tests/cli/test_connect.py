"""`agentspec connect`: what it prints can be read by the client it is for."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from agentspec.connect.clients import CLIENTS
from agentspec.connect.endpoint import KEY_VARIABLE, Endpoint
from agentspec.connect.files import render
from tests.api.conftest import LiveServer, live_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from click.testing import Result

OPEN = Endpoint("http://127.0.0.1:8642", "coder", 8192)
KEYED = Endpoint("http://127.0.0.1:8642", "coder", 8192, needs_key=True, inline=True)
PARSERS: dict[str, Callable[[str], Any]] = {"json": json.loads, "yaml": yaml.safe_load, "toml": tomllib.loads}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with live_server(tmp_path_factory.mktemp("roots")) as server:
        yield server


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def process(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, away from the log of the server in this one."""
    command = [sys.executable, "-m", "agentspec", "connect", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)


def texts(name: str, endpoint: Endpoint) -> list[Any]:
    """A client's files: parsed where there is a parser, else as text."""
    recipe = CLIENTS[name].recipe(endpoint)
    return [PARSERS.get(file.format, str)(render(file)) for file in recipe.files]


def test_every_client_of_the_list_has_a_recipe(agentspec: Callable[..., Result]) -> None:
    names = {entry["name"] for entry in json.loads(agentspec("connect", "--json").stdout)}
    assert names >= {"continue", "zed", "cline", "aider", "openhands", "goose", "codex", "claude-code", "minuet"}
    assert names >= {"llama.vim", "jetbrains", "vscode"}
    for name in names:
        for endpoint in (OPEN, KEYED):
            for text in texts(name, endpoint):
                assert text


@pytest.mark.parametrize("name", CLIENTS)
def test_every_recipe_names_the_server_and_the_model_and_no_none(name: str) -> None:
    for endpoint in (OPEN, KEYED):
        shown = json.dumps(texts(name, endpoint))
        assert endpoint.root in shown
        assert endpoint.model in shown
        assert "None" not in shown


@pytest.mark.parametrize("name", sorted(CLIENTS.keys() - {"jetbrains"}))
def test_a_server_with_keys_is_reached_by_a_variable_and_no_key_is_written(name: str) -> None:
    recipe = CLIENTS[name].recipe(KEYED)
    shown = "".join(render(file) for file in recipe.files)
    assert KEY_VARIABLE in shown + "".join(recipe.notes) or "server's key" in "".join(recipe.notes)
    assert '"agentspec"' not in json.dumps([v for t in texts(name, KEYED) for k, v in flat(t) if "key" in k.lower()])


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from flat(item, f"{path}.{key}")
    elif isinstance(value, list):
        for item in value:
            yield from flat(item, path)
    else:
        yield path, value


def test_continue() -> None:
    [config] = texts("continue", KEYED)
    assert (config["name"], config["version"], config["schema"]) == ("Local", "1.0.0", "v1")
    chat, inline = config["models"]
    assert chat["provider"] == "openai"
    assert chat["apiBase"] == "http://127.0.0.1:8642/v1"
    assert chat["apiKey"] == "${{ secrets.AGENTSPEC_API_KEY }}"
    assert chat["roles"] == ["chat", "edit", "apply"]
    assert inline["provider"] == "mistral"
    assert inline["roles"] == ["autocomplete"]
    assert [model["name"] for model in texts("continue", OPEN)[0]["models"]] == ["agentspec"]


def test_zed() -> None:
    [settings] = texts("zed", KEYED)
    provider = settings["language_models"]["openai_compatible"]["agentspec"]
    assert provider["api_url"] == "http://127.0.0.1:8642/v1"
    [model] = provider["available_models"]
    assert (model["name"], model["max_tokens"]) == ("coder", 8192)
    assert set(model["capabilities"]) == {"tools", "images", "parallel_tool_calls", "prompt_cache_key"}
    assert settings["edit_predictions"]["open_ai_compatible_api"]["api_url"].endswith("/v1/completions")
    assert "edit_predictions" not in texts("zed", OPEN)[0]


def test_vscode() -> None:
    [[entry]] = texts("vscode", OPEN)
    assert (entry["vendor"], entry["apiType"]) == ("customendpoint", "chat-completions")
    [model] = entry["models"]
    assert model["url"] == "http://127.0.0.1:8642/v1/chat/completions"
    assert model["maxInputTokens"] + model["maxOutputTokens"] == 8192


def test_aider() -> None:
    settings, metadata = texts("aider", OPEN)
    assert settings == {
        "model": "openai/coder",
        "openai-api-base": "http://127.0.0.1:8642/v1",
        "openai-api-key": "agentspec",
    }
    assert metadata["openai/coder"]["max_input_tokens"] == 8192
    assert "openai-api-key" not in texts("aider", KEYED)[0]


def test_codex() -> None:
    [config] = texts("codex", KEYED)
    assert (config["model"], config["model_provider"]) == ("coder", "agentspec")
    provider = config["model_providers"]["agentspec"]
    assert provider["wire_api"] == "responses"
    assert provider["env_key"] == KEY_VARIABLE
    assert "env_key" not in texts("codex", OPEN)[0]["model_providers"]["agentspec"]


def test_claude_code() -> None:
    [settings] = texts("claude-code", OPEN)
    env = settings["env"]
    assert env["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8642"
    assert {env[f"ANTHROPIC_DEFAULT_{tier}_MODEL"] for tier in ("OPUS", "SONNET", "HAIKU")} == {"coder"}
    assert all(isinstance(value, str) for value in env.values())
    [keyed] = texts("claude-code", KEYED)
    assert keyed["apiKeyHelper"] == "printenv AGENTSPEC_API_KEY"
    assert "ANTHROPIC_AUTH_TOKEN" not in keyed["env"]


def test_goose() -> None:
    provider, config = texts("goose", OPEN)
    assert provider["name"] == config["active_provider"]
    assert provider["models"] == [{"name": "coder", "context_limit": 8192}]
    assert config["providers"]["agentspec"]["model"] == "coder"


def test_it_asks_the_server_and_prints_text_on_stdout_only(server: LiveServer) -> None:
    result = process("codex", "--url", f"{server.url}/v1/")
    config = tomllib.loads(result.stdout)
    assert config["model"] == server.engine.model.id
    assert config["model_context_window"] == server.engine.model.context_length
    assert config["model_providers"]["agentspec"]["base_url"] == f"{server.url}/v1"
    assert "~/.codex/config.toml" in result.stderr


def test_write_merges_and_says_what_it_wrote(agentspec: Callable[..., Result], server: LiveServer, home: Path) -> None:
    settings = home / ".claude" / "settings.json"
    settings.parent.mkdir()
    settings.write_text('{"permissions": {"allow": ["Read"]}, "env": {"MINE": "1"}}')
    result = agentspec("connect", "claude-code", "--url", server.url, "--write")
    assert result.exit_code == 0
    assert str(settings) in result.stdout
    merged = json.loads(settings.read_text())
    assert merged["permissions"] == {"allow": ["Read"]}
    assert merged["env"]["MINE"] == "1"
    assert merged["env"]["ANTHROPIC_BASE_URL"] == server.url
    assert (settings.parent / "settings.json.before-agentspec").read_text().startswith('{"permissions"')


def test_settings_that_cannot_be_merged_are_not_written(
    agentspec: Callable[..., Result], server: LiveServer, home: Path
) -> None:
    result = agentspec("connect", "jetbrains", "--url", server.url, "--write")
    assert result.exit_code == 2
    assert "leave --write off" in result.stderr
    assert list(home.iterdir()) == []


def test_a_server_with_keys(agentspec: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = tmp_path / "keys"
    keys.write_text("sesame\n")
    with live_server(tmp_path, api_key_file=keys) as server:
        refused = agentspec("connect", "codex", "--url", server.url)
        assert refused.exit_code == 2
        assert KEY_VARIABLE in refused.stderr
        monkeypatch.setenv(KEY_VARIABLE, "sesame")
        result = process("codex", "--url", server.url)
    assert "sesame" not in result.stdout + result.stderr
    assert tomllib.loads(result.stdout)["model_providers"]["agentspec"]["env_key"] == KEY_VARIABLE


def test_no_server_no_client_and_no_url_are_one_line(agentspec: Callable[..., Result], server: LiveServer) -> None:
    nobody = agentspec("connect", "codex", "--url", "http://127.0.0.1:9")
    assert nobody.exit_code == 1
    assert "agentspec serve" in nobody.stderr
    unknown = agentspec("connect", "emacs", "--url", server.url)
    assert unknown.exit_code == 2
    assert "continue" in unknown.stderr
    assert agentspec("connect", "codex", "--url", "ftp://x").exit_code == 2
    other = agentspec("connect", "codex", "--url", f"{server.url}/health")
    assert other.exit_code == 1
    assert "no agentspec server" in other.stderr
