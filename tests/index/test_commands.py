"""`agentspec index` and `agentspec status` as people and programs run them."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from agentspec.cli.main import app
from agentspec.index.store import IndexStore, list_stores
from agentspec.index.writer import open_writer
from tests.index.conftest import REPOSITORY_ROOT

if TYPE_CHECKING:
    from click.testing import Result

PATIENCE_SECONDS = 30.0
COMMAND = (sys.executable, "-c", "from agentspec.cli.main import app; app()")


class Commands:
    """Runs verbs with an index folder and a model of their own."""

    def __init__(self, index_directory: Path, model: Path) -> None:
        self.environment = {
            **os.environ,
            "AGENTSPEC_INDEX__DIRECTORY": str(index_directory),
            "AGENTSPEC_ENGINE__MODEL": str(model),
            "AGENTSPEC_CACHE_DIRECTORY": str(index_directory / "cache"),
        }
        self.index_directory = index_directory

    def run(self, *arguments: str | Path) -> Result:
        return CliRunner().invoke(app, [str(argument) for argument in arguments], env=self.environment)

    def run_json(self, *arguments: str | Path) -> Any:
        result = self.run(*arguments, "--json")
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    def start(self, *arguments: str | Path, **options: Any) -> subprocess.Popen[bytes]:
        command = [*COMMAND, *(str(argument) for argument in arguments)]
        # As from a terminal: a job in a script's background has inherited SIGINT as ignored.
        before = signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            return subprocess.Popen(command, env=self.environment, cwd=REPOSITORY_ROOT, **options)
        finally:
            signal.signal(signal.SIGINT, before)


@pytest.fixture
def commands(index_directory: Path, tokenizer_file: Path) -> Commands:
    return Commands(index_directory, tokenizer_file.parent)


def test_index_says_what_it_did(commands: Commands, repository: Path) -> None:
    (repository / ".env").write_text("A=1\n")
    first = commands.run("index", repository)
    assert first.exit_code == 0, first.stderr
    assert first.stdout.startswith(f"indexed {repository}: 2 files, ")
    assert "left out: 1 secret" in first.stdout
    assert commands.run("index", repository).stdout.startswith(f"up to date: {repository}: 2 files, ")


def test_index_reports_to_programs(commands: Commands, repository: Path) -> None:
    report = commands.run_json("index", repository)
    assert report["changed"] is True
    assert (report["files"], report["new_documents"], report["generation"]) == (2, 2, 1)
    assert Path(report["store"]).is_dir()
    assert report["bytes"] > report["tokens"] > 0


def test_a_dry_run_says_what_would_be_done(commands: Commands, repository: Path) -> None:
    report = commands.run_json("index", repository, "--dry-run")
    assert (report["dry_run"], report["files"], report["new_documents"]) == (True, 2, 2)
    assert "would index 2 files" in commands.run("index", repository, "--dry-run").stdout
    assert list_stores(commands.index_directory) == []
    commands.run("index", repository)
    assert "nothing to do" in commands.run("index", repository, "--dry-run").stdout


def test_verify_finds_damage_and_rebuild_mends_it(commands: Commands, repository: Path) -> None:
    store = Path(commands.run_json("index", repository)["store"])
    assert "is whole" in commands.run("index", repository, "--verify").stdout
    assert commands.run_json("index", repository, "--verify")["problems"] == []
    (segment,) = store.glob("*.segment")
    content = bytearray(segment.read_bytes())
    content[-70] ^= 1
    segment.write_bytes(content)
    damaged = commands.run("index", repository, "--verify")
    assert damaged.exit_code == 4
    assert "--rebuild" in damaged.stderr
    assert commands.run("index", repository, "--rebuild").exit_code == 0
    assert commands.run("index", repository, "--verify").exit_code == 0


def test_exit_codes_tell_what_was_wrong(commands: Commands, repository: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert commands.run("index", tmp_path / "absent").exit_code == 2
    assert commands.run("index", tmp_path / "file").exit_code == 2
    assert commands.run("index", repository, "--watch", "--verify").exit_code == 2
    assert commands.run("index", repository, "--verify").exit_code == 4
    assert commands.run("index", repository, "--model", tmp_path / "file").exit_code == 5
    assert commands.run("index", repository, "--model", "no such model").exit_code == 5
    report = commands.run_json("index", repository)
    store = IndexStore(Path(report["store"]))
    with open_writer(store, store.manifest().tokenizer, marks="test"):
        locked = commands.run("index", repository)
    assert locked.exit_code == 4
    assert "another agentspec index" in locked.stderr
    assert "Traceback" not in locked.stderr


def test_a_missing_index_of_this_tokenizer_names_the_others(
    commands: Commands, repository: Path, tokenizer_file: Path, tmp_path: Path
) -> None:
    commands.run("index", repository)
    content = json.loads(tokenizer_file.read_text())
    content["normalizer"] = {"type": "NFC"}
    other = tmp_path / "other"
    other.mkdir()
    (other / "tokenizer.json").write_text(json.dumps(content))
    result = commands.run("index", repository, "--verify", "--model", other)
    assert result.exit_code == 4
    assert str(tokenizer_file.parent) in " ".join(result.stderr.split())


def test_status_lists_every_index_and_what_became_of_its_repository(commands: Commands, repository: Path) -> None:
    assert "no indexes" in commands.run("status").stdout
    commands.run("index", repository)
    (row,) = commands.run_json("status")
    assert (row["repository"], row["state"], row["files"], row["generation"]) == (str(repository), "up to date", 2, 1)
    shown = commands.run("status").stdout
    assert f"{repository}: up to date" in shown
    assert "bytes per token" in shown
    (repository / "alpha.py").write_text("x = 1\n")
    assert commands.run_json("status")[0]["state"] == "changed since"
    repository.rename(repository.with_name("moved"))
    assert commands.run_json("status")[0]["state"] == "repository is gone"
    (Path(row["store"]) / "manifest.json").write_text("{")
    assert commands.run_json("status")[0]["state"].startswith("unusable: ")
    assert commands.run("status").exit_code == 0


def test_a_second_run_of_the_whole_program_is_quick(commands: Commands, repository: Path) -> None:
    commands.run("index", repository)
    script = "import sys; sys.argv[0] = 'agentspec'; from agentspec.cli.main import app; app(standalone_mode=False);"
    script += "print(sorted({'torch', 'transformers', 'fastapi', 'pydantic_core'} & set(sys.modules)))"
    command = [sys.executable, "-c", script, "index", str(repository)]
    done = subprocess.run(
        command, env=commands.environment, cwd=REPOSITORY_ROOT, capture_output=True, text=True, check=True
    )
    assert "up to date" in done.stdout
    assert "torch" not in done.stdout
    assert "transformers" not in done.stdout


def test_a_terminal_gets_a_bar_and_a_pipe_gets_lines(
    commands: Commands, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(50):
        (repository / f"file{number}.py").write_text(f"value = {number}\n" * 50)
    master, slave = pty.openpty()
    running = commands.start("index", repository, stdout=subprocess.DEVNULL, stderr=slave)
    os.close(slave)
    shown = b""
    while chunk := _read(master):
        shown += chunk
    assert running.wait(PATIENCE_SECONDS) == 0
    assert "━".encode() in shown
    assert b"of 52 files" in shown

    monkeypatch.setattr("agentspec.cli.index._PLAIN_LINE_SECONDS", 0.0)
    result = commands.run("index", repository, "--rebuild")
    assert "indexing: 52 of 52 files, 100% of the bytes" in result.stderr


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return b""


def test_a_watch_follows_until_it_is_interrupted(commands: Commands, repository: Path) -> None:
    running = commands.start("index", repository, "--watch", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert running.stdout is not None
    assert running.stderr is not None
    assert b"indexed" in running.stdout.readline()
    while b"watching" not in running.stderr.readline():
        pass
    (repository / "late.py").write_text("x = 1\n")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while "3 files" not in (line := running.stdout.readline().decode()):
        assert line
        assert time.monotonic() < deadline
    running.send_signal(signal.SIGINT)
    assert running.wait(PATIENCE_SECONDS) == 0
    assert b"Traceback" not in running.stderr.read()
    running.stdout.close()
    running.stderr.close()


def test_an_interrupted_run_says_so_and_leaves_the_index(
    commands: Commands, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("agentspec.index.build.make_documents", interrupt)
    result = commands.run("index", repository)
    assert result.exit_code == 130
    assert "interrupted; the published index is unchanged" in result.stderr
