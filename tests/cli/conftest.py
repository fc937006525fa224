"""A private home for settings, and a tiny random model that verbs can load."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from agentspec.cli.main import app
from tests.benchmarking.conftest import ScratchRepository
from tests.engines.local import tiny_target

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result

SOURCE = '''"""Numbers."""


def add(first, second):
    """The sum of two numbers."""
    return first + second


def subtract(first, second):
    """The difference of two numbers."""
    return first - second


def multiply(first, second):
    """The product of two numbers."""
    return first * second
'''


@pytest.fixture(autouse=True)
def private_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the developer's reaches a test, and no test writes into the developer's folders."""
    for name in [name for name in os.environ if name.startswith("AGENTSPEC_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture
def agentspec() -> Callable[..., Result]:
    """Runs the command in this process."""

    def run(*arguments: object) -> Result:
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return run


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with room for a few thousand tokens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_target, "CONTEXT", 4096)
        return tiny_target.make_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture
def small(model: Path) -> tuple[object, ...]:
    """Flags that make a verb use the tiny model in one exact way."""
    return ("--model", model, "--device", "cpu", "--dtype", "float32", "--threads", "1")


@pytest.fixture
def repository(tmp_path: Path) -> ScratchRepository:
    """Two commits, the second an edit."""
    root = tmp_path / "scratch"
    root.mkdir()
    scratch = ScratchRepository(root)
    scratch.commit("start", numbers_py=SOURCE, words_py=SOURCE.replace("number", "word"))
    scratch.commit("Rename add", numbers_py=SOURCE.replace("add", "plus"))
    return scratch
