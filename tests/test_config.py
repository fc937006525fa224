"""Settings: precedence of flags, environment and file; clear errors."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from agentspec.config import CONFIG_FILE_VARIABLE, Settings
from agentspec.errors import InvalidRequestError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def no_settings_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AGENTSPEC_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def settings_file(tmp_path: Path) -> Path:
    file = tmp_path / "settings.yaml"
    file.write_text("server:\n  port: 1111\n  host: 0.0.0.0\nengine:\n  model: from-file\n  max_running: 3\n")
    return file


def test_defaults_hold_without_any_source() -> None:
    settings = Settings.load()
    assert (settings.server.host, settings.server.port, settings.engine.kind) == ("127.0.0.1", 8642, "local")


def test_flags_win_over_environment_over_file_over_defaults(
    settings_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTSPEC_SERVER__PORT", "2222")
    monkeypatch.setenv("AGENTSPEC_ENGINE__MODEL", "from-environment")
    settings = Settings.load(settings_file, server={"port": 3333})
    assert settings.server.port == 3333
    assert settings.engine.model == "from-environment"
    assert settings.server.host == "0.0.0.0"
    assert settings.engine.max_running == 3
    assert settings.engine.max_waiting == 64


def test_the_environment_names_the_file(settings_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONFIG_FILE_VARIABLE, str(settings_file))
    assert Settings.load().engine.model == "from-file"


def test_a_file_does_not_leak_into_the_next_load(settings_file: Path) -> None:
    assert Settings.load(settings_file).server.port == 1111
    assert Settings().server.port == 8642
    assert Settings.load().server.port == 8642


def test_an_empty_file_is_no_setting(tmp_path: Path) -> None:
    file = tmp_path / "empty.yaml"
    file.write_text("# nothing yet\n")
    assert Settings.load(file) == Settings.load()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("server:\n  prot: 1\n", "server.prot"),
        ("sever:\n  port: 1\n", "sever"),
        ("server:\n  port: many\n", "server.port"),
        ("server:\n  port: 70000\nengine:\n  max_running: 0\n", "engine.max_running"),
        ("- a list\n", "holds a list"),
        ("server: [unclosed\n", "not valid YAML"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, content: str, expected: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(content)
    with pytest.raises(InvalidRequestError, match=expected):
        Settings.load(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"nowhere\.yaml does not exist"):
        Settings.load(tmp_path / "nowhere.yaml")


def test_a_file_that_is_not_utf8_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        Settings.load(file)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AGENTSPEC_SERVER__PORT", "many"),
        ("AGENTSPEC_ENGINE__UNKNOWN", "1"),
        ("AGENTSPEC_SERVER__CORS_ORIGINS", "[not json"),
    ],
)
def test_a_bad_environment_variable_is_an_error(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidRequestError, match="settings"):
        Settings.load()


def test_settings_cannot_be_changed_after_loading() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings.load().cache_directory = None  # type: ignore[assignment]


def test_user_directories_follow_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    settings = Settings.load()
    assert settings.cache_directory == tmp_path / "cache" / "agentspec"
    assert settings.index.directory == tmp_path / "data" / "agentspec" / "index"
