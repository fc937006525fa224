from __future__ import annotations

import os
import socket
import subprocess
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.index.memory import MEMORY_NAME, FileStatus, Remembered, load_memory, save_memory
from agentspec.index.rules import Reason
from agentspec.index.scan import FileText, Scanner, blob_id
from tests.index.conftest import run_git

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = 1000


def verdicts(root: Path) -> dict[str, str | None]:
    scanner = Scanner(root.resolve(), LIMIT, {})
    found = {}
    for file in scanner.survey():
        verdict = file.verdict if file.verdict is not None else scanner.read(file.path)
        found[os.fsdecode(file.path)] = verdict.text if isinstance(verdict, FileText) else verdict
    return found


def test_a_link_is_never_read_wherever_it_leads(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "outside.py").write_text("outside = 1\n")
    (repository / "out.py").symlink_to(tmp_path / "outside.py")
    (repository / "in.py").symlink_to(repository / "alpha.py")
    (repository / "broken").symlink_to("nowhere")
    found = verdicts(repository)
    assert {found[name] for name in ("out.py", "in.py", "broken")} == {Reason.SYMLINK}


def test_a_tracked_file_behind_a_linked_folder_is_not_read(repository: Path, tmp_path: Path) -> None:
    folder = repository / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a.py").write_text("inside = 1\n")
    run_git(repository, "add", ".")
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    found = verdicts(repository)
    assert found["folder/deep/a.py"] is Reason.SYMLINK
    assert found["folder"] is Reason.SYMLINK


def test_a_file_that_becomes_a_link_before_it_is_read_is_not_followed(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "outside.py").write_text("outside = 1\n")
    scanner = Scanner(repository, LIMIT, {})
    scanner.survey()
    (repository / "alpha.py").unlink()
    (repository / "alpha.py").symlink_to(tmp_path / "outside.py")
    assert scanner.read(b"alpha.py") is Reason.SYMLINK


def test_deleted_files_are_no_files(repository: Path) -> None:
    (repository / "alpha.py").unlink()
    assert list(verdicts(repository)) == ["beta.js"]


def test_repositories_inside_are_counted(repository: Path) -> None:
    (repository / "inner").mkdir()
    run_git(repository / "inner", "init", "--quiet")
    assert verdicts(repository)["inner"] is Reason.SUBMODULE


def test_pipes_and_sockets_do_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        assert verdicts(tmp_path) == {"pipe": Reason.SPECIAL, "socket": Reason.SPECIAL}


def test_the_size_limit_is_inclusive(tmp_path: Path) -> None:
    (tmp_path / "fits").write_text("a\n" * (LIMIT // 2))
    (tmp_path / "over").write_text("a\n" * (LIMIT // 2) + "b")
    assert verdicts(tmp_path) == {"fits": "a\n" * (LIMIT // 2), "over": Reason.TOO_LARGE}


def test_unreadable_files_are_counted(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    (tmp_path / "a.py").write_text("x\n")
    (tmp_path / "a.py").chmod(0)
    assert verdicts(tmp_path) == {"a.py": Reason.UNREADABLE}


@pytest.mark.parametrize("content", [b"", b"x = 1\n", b"\xff\0\r\n"])
def test_blob_ids_are_gits(repository: Path, content: bytes) -> None:
    (repository / "x").write_bytes(content)
    command = ["git", "hash-object", "x"]
    expected = subprocess.run(command, cwd=repository, check=True, capture_output=True, text=True).stdout.strip()
    assert blob_id(content).hex() == expected


STATUSES = st.builds(FileStatus, *[st.integers(0, 2**62)] * 4)
VERDICTS = st.sampled_from(list(Reason)) | st.binary(min_size=20, max_size=20)


@settings(deadline=None)
@given(st.dictionaries(st.binary(min_size=1, max_size=9), st.builds(Remembered, STATUSES, VERDICTS), max_size=9))
def test_what_is_remembered_is_found_again(
    tmp_path_factory: pytest.TempPathFactory, memory: dict[bytes, Remembered]
) -> None:
    directory = tmp_path_factory.mktemp("memory")
    save_memory(directory, LIMIT, memory)
    assert load_memory(directory, LIMIT) == memory
    assert load_memory(directory, LIMIT + 1) == {}, "another limit makes other verdicts"


def test_a_damaged_memory_is_forgotten(tmp_path: Path) -> None:
    save_memory(tmp_path, LIMIT, {b"a": Remembered(FileStatus(1, 2, 3, 4), bytes(20))})
    file = tmp_path / MEMORY_NAME
    content = file.read_bytes()
    for length in range(len(content)):
        file.write_bytes(content[:length])
        assert load_memory(tmp_path, LIMIT) == {}
    for position in range(len(content)):
        broken = bytearray(content)
        broken[position] ^= 4
        file.write_bytes(broken)
        assert load_memory(tmp_path, LIMIT) == {}


def test_remembered_files_are_not_read(repository: Path) -> None:
    status = FileStatus.of((repository / "alpha.py").lstat())
    scanner = Scanner(repository, LIMIT, {b"alpha.py": Remembered(status, b"x" * 20)})
    assert {file.path: file.verdict for file in scanner.survey()} == {b"alpha.py": b"x" * 20, b"beta.js": None}


def test_any_change_of_the_status_has_the_file_read(repository: Path) -> None:
    status = FileStatus.of((repository / "alpha.py").lstat())
    for name in FileStatus._fields:
        other = status._replace(**{name: getattr(status, name) + 1})
        scanner = Scanner(repository, LIMIT, {b"alpha.py": Remembered(other, b"x" * 20)})
        assert scanner.survey()[0].verdict is None


def test_a_file_written_just_now_is_not_remembered() -> None:
    now = time.time_ns() | 1
    fresh, settled = FileStatus(1, now - 10_000_000, now, 1), FileStatus(1, now - 10**9, now - 10**9, 1)
    coarse = FileStatus(1, now // 10**9 * 10**9 - 10**9, now // 10**9 * 10**9 - 10**9, 1)
    assert not fresh.is_settled(now)
    assert not FileStatus(1, now - 10**9, now, 1).is_settled(now), "a write may set the first time to anything"
    assert settled.is_settled(now)
    assert not coarse.is_settled(now), "a clock that ticks in seconds may hide a write for that long"
