"""`agentspec doctor`: what it finds, what it advises, and its exit status."""

from __future__ import annotations

import importlib.util
import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result


def checks(result: Result) -> dict[str, dict[str, str]]:
    return {check["name"]: check for check in json.loads(result.stdout)}


def test_a_machine_that_can_do_the_main_job(agentspec: Callable[..., Result], model: Path) -> None:
    result = agentspec("doctor", "--json", "--model", model)
    assert result.exit_code == 0, result.output
    found = checks(result)
    assert {name for name, check in found.items() if check["status"] == "fail"} == set()
    assert found["model"]["detail"] == str(model)
    for name in ("Python", "C++ compiler", "git", "native core", "torch", "GPU", "CPU", "memory", "grammars"):
        assert name in found


def test_the_table_shows_hints(agentspec: Callable[..., Result]) -> None:
    result = agentspec("doctor")
    assert "warn" in result.stdout
    assert "→ agentspec models pull smollm2-135m-instruct" in result.stdout


def test_missing_programs_are_warnings(
    agentspec: Callable[..., Result], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    result = agentspec("doctor", "--json", "--model", model)
    assert result.exit_code == 0
    found = checks(result)
    assert found["C++ compiler"]["status"] == found["git"]["status"] == "warn"
    assert "apt-get install g++" in found["C++ compiler"]["hint"]


def test_a_model_that_is_not_there_fails(agentspec: Callable[..., Result]) -> None:
    result = agentspec("doctor", "--json", "--model", "no-such-model")
    assert result.exit_code == 1
    assert checks(result)["model"]["status"] == "fail"


def test_folders_that_cannot_be_written_fail(
    agentspec: Callable[..., Result], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("AGENTSPEC_INDEX__DIRECTORY", str(tmp_path / "file" / "index"))
    result = agentspec("doctor", "--json", "--model", model)
    assert result.exit_code == 1
    assert checks(result)["index folder"]["status"] == "fail"
    assert checks(result)["cache folder"]["status"] == "ok"


def test_it_makes_nothing(agentspec: Callable[..., Result], model: Path, tmp_path: Path) -> None:
    agentspec("doctor", "--model", model)
    assert not (tmp_path / "cache").exists()
    assert not (tmp_path / "data").exists()


def test_sglang_is_needed_only_when_asked_for(
    agentspec: Callable[..., Result], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if importlib.util.find_spec("sglang") is not None:
        pytest.skip("SGLang is installed here")
    assert checks(agentspec("doctor", "--json", "--model", model))["SGLang"]["status"] == "ok"
    monkeypatch.setenv("AGENTSPEC_ENGINE__KIND", "sglang")
    result = agentspec("doctor", "--json", "--model", model)
    assert result.exit_code == 1
    assert "agentspec[sglang]" in checks(result)["SGLang"]["hint"]
