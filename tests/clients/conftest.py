"""Real clients against a scripted or the embedded model, each in a home and a scratch repository of its own.

`make test-clients` installs them and runs these tests; what ran, in which version and how it went becomes the table of
docs/clients.md.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentspec.config import Settings
from agentspec.connect.clients import find_client
from agentspec.connect.endpoint import find_endpoint
from agentspec.connect.files import write
from agentspec.engines.base import ModelInfo
from agentspec.engines.local.pull import pull
from agentspec.errors import ModelError
from tests.api import scripted_engine
from tests.api.conftest import LiveServer, live_server
from tests.clients import agent_script
from tests.clients.matrix import Matrix, Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastapi import FastAPI

ROOT = Path(__file__).parents[2]
INSTALLED = ROOT / ".clients"
"""Where `make test-clients` installs clients."""

CONTEXT = 200_000
"""Tokens of the scripted model's context; agents send long system prompts, and here a token is a character."""

EMBEDDED_MODEL = "smollm2-135m-instruct"
CLIENT_SECONDS = 300.0
MATRIX_VARIABLE = "AGENTSPEC_MATRIX"
"""Names the document whose table the run writes."""

matrix = Matrix()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    marker = item.get_closest_marker("client")
    if marker is not None and (report.when == "call" or report.skipped):
        row = Row(*marker.args)
        matrix.add(row, getattr(item, "client_version", ""), report.outcome, _reason(report))
    return report


def _reason(report: pytest.TestReport) -> str:
    return str(report.longrepr[2]).removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else ""


def pytest_sessionfinish() -> None:
    if document := os.environ.get(MATRIX_VARIABLE):
        matrix.write(Path(document))


@dataclass(frozen=True)
class Workplace:
    """Where a client works.

    Attributes:
        home: its home directory, empty but for what `agentspec connect` wrote.
        repository: a git repository with one file that has one mistake.
        server: the server that it is connected to.
    """

    home: Path
    repository: Path
    server: LiveServer

    def connect(self, client: str) -> None:
        """Write the client's configuration as `agentspec connect --write` does."""
        for file in find_client(client).recipe(find_endpoint(self.server.url)).files:
            write(file)

    def run(self, *command: str | Path, **environment: str) -> str:
        """Run a client to its end.

        Returns:
            What it printed.
        """
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
        result = subprocess.run(
            [str(part) for part in command],
            cwd=self.repository,
            env={**kept, "HOME": str(self.home), "TERM": "dumb", "CI": "1", **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=CLIENT_SECONDS,
        )
        assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
        return result.stdout

    @property
    def file(self) -> str:
        """The file as it is now."""
        return (self.repository / agent_script.FILE).read_text()


@pytest.fixture(scope="session")
def agent_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    def prepare(app: FastAPI) -> None:
        app.state.services.engine.model = ModelInfo("scripted-model", CONTEXT, 1_700_000_000)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scripted_engine, "CONTEXT", CONTEXT)
        with live_server(tmp_path_factory.getbasetemp(), prepare) as server:
            yield server


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scratch repository; the home directory is a scratch one too."""
    home, repository = tmp_path / "home", tmp_path / "scratch"
    home.mkdir()
    repository.mkdir()
    monkeypatch.setenv("HOME", str(home))
    (repository / agent_script.FILE).write_text(agent_script.BEFORE)
    identity = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.org")
    for arguments in (("init", "-q"), ("add", "."), (*identity, "commit", "-q", "-m", "Start")):
        subprocess.run(["git", *arguments], cwd=repository, check=True)
    return repository


@pytest.fixture
def workplace(agent_server: LiveServer, repository: Path) -> Workplace:
    agent_server.engine.reset()
    agent_server.engine.script = agent_script.script
    return Workplace(Path.home(), repository, agent_server)


@pytest.fixture(scope="session")
def embedded_cache() -> Path:
    """The cache that holds the embedded model; skips the test where it cannot be fetched."""
    cache = Settings.load().cache_directory
    try:
        pull(EMBEDDED_MODEL, cache)
    except ModelError as error:
        pytest.skip(f"the embedded model cannot be fetched: {error}")
    return cache


def executable(name: str) -> Path:
    """An installed client; skips the test where there is none."""
    for folder in (INSTALLED / "python" / "bin", INSTALLED / "node_modules" / ".bin"):
        if (folder / name).exists():
            return folder / name
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed; make test-clients installs it")
    return Path(found)
