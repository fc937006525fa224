"""Publishing is ended between any two of its steps; what is left must be the old generation or the new one."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentspec.errors import IndexStoreError
from agentspec.index.store import IndexStore
from tests.index.conftest import REPOSITORY_ROOT
from tests.index.making import contents, document, publish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STEPS = ("open", "write", "fsync", "replace", "unlink")
OLD = {"a": document([1, 2, 3]), "b": document([4] * 40)}
NEW = {"a": document([7, 8]), "c": document([9] * 30)}


class StepCounter:
    """Calls `act` before and after every file operation of this process."""

    def __init__(self, act: Callable[[int, str], None]) -> None:
        self.count = 0
        self._act = act

    def install(self, patch: Callable[[str, object], None]) -> None:
        for name in STEPS:
            patch(name, self._around(name, getattr(os, name)))

    def _around(self, name: str, real: Callable[..., object]) -> Callable[..., object]:
        def step(*arguments: object, **named: object) -> object:
            self._act(self.count, f"before {name}")
            self.count += 1
            result = real(*arguments, **named)
            self._act(self.count, f"after {name}")
            self.count += 1
            return result

        return step


def run_killed(directory: Path, stop: int) -> bool:
    """Publish NEW in a forked process that ends itself at moment `stop`; whether it came that far."""
    child = os.fork()
    if child == 0:
        counter = StepCounter(lambda number, _: os._exit(9) if number == stop else None)
        counter.install(lambda name, step: setattr(os, name, step))
        try:
            publish(directory, NEW)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def walk_all_moments(work: Path) -> dict[str, int]:
    """Kill at every moment; counts which generation was found. Run in a process without threads, since it forks."""
    base = work / "base"
    publish(base, OLD)
    old, new = ({path: item.tokens.tolist() for path, item in files.items()} for files in (OLD, NEW))
    found = {"old": 0, "new": 0}
    for stop in range(10_000):
        directory = work / str(stop)
        shutil.copytree(base, directory)
        reached = run_killed(directory, stop)
        left = contents(IndexStore(directory).current())
        assert left in (old, new), f"killed at moment {stop}: {left}"
        assert IndexStore(directory).verify() == []
        found["old" if left == old else "new"] += 1
        assert contents(publish(directory, NEW)) == new, "the next writer goes on from there"
        names = IndexStore(directory).manifest().file_names()
        assert {file.name for file in directory.iterdir()} == {*names, "manifest.json", "lock", ".gitignore"}, (
            "leaving nothing behind"
        )
        if not reached:
            assert left == new
            return found
    raise AssertionError("publishing never came to its end")


def test_killed_at_any_moment_the_old_or_the_new_generation_is_there(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.index.test_crash", str(tmp_path)],
        cwd=REPOSITORY_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["old"] > 20
    assert found["new"] > 4, "a generation that is published counts although its garbage is not collected"


def test_everything_is_on_the_disk_before_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order in which a power cut is survived: content, then names, then the manifest, then its name."""
    publish(tmp_path, OLD)
    events: list[tuple[str, str]] = []
    real = {name: getattr(os, name) for name in STEPS}

    def name_of(descriptor: int) -> str:
        return Path(f"/proc/self/fd/{descriptor}").readlink().name

    def log(name: str, describe: Callable[..., str]) -> None:
        def step(*arguments: object, **named: object) -> object:
            events.append((name, describe(*arguments)))
            return real[name](*arguments, **named)

        monkeypatch.setattr(os, name, step)

    if not Path("/proc/self/fd").exists():
        pytest.skip("open files have names in /proc on Linux only")
    log("write", lambda descriptor, _: name_of(descriptor))
    log("fsync", name_of)
    log("replace", lambda _, target: Path(target).name)
    log("unlink", lambda path, **_: Path(path).name)
    publish(tmp_path, NEW)

    folder = tmp_path.name
    manifest = IndexStore(tmp_path).manifest()
    publication = events.index(("replace", "manifest.json"))
    for name in manifest.file_names():
        named = events.index(("replace", name))
        assert ("fsync", f"{name}.tmp") in events[:named]
        assert ("fsync", folder) in events[named:publication]
    assert events[publication - 1] == ("fsync", "manifest.json.tmp")
    assert events[publication + 1] == ("fsync", folder)
    assert all(name != "unlink" for name, _ in events[: publication + 2]), "garbage goes last"


@pytest.mark.parametrize("failing", ["write", "fsync", "replace"])
def test_a_full_disk_leaves_the_old_generation_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    old = {path: item.tokens.tolist() for path, item in OLD.items()}
    real = getattr(os, failing)
    for stop in range(1000):
        directory = tmp_path / str(stop)
        publish(directory, OLD)
        calls = 0

        def step(*arguments: object, stop: int = stop) -> object:
            nonlocal calls
            calls += 1
            if calls == stop + 1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*arguments)

        with monkeypatch.context() as patched:
            patched.setattr(os, failing, step)
            try:
                publish(directory, NEW)
            except IndexStoreError as error:
                assert "space" in str(error).lower()  # noqa: PT017 - it need not be raised in the last round
            else:
                break
        store = IndexStore(directory)
        if store.manifest().generation == 1:
            assert contents(store.current()) == old
        assert not list(directory.glob("*.tmp")), "half-written files take no space"
        assert store.verify() == []
    assert stop >= 3


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "none", disk], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small disk needs root on Linux")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


def test_a_disk_that_is_really_full(small_disk: Path) -> None:
    directory = small_disk / "store"
    publish(directory, OLD)
    with pytest.raises(IndexStoreError, match="no space left"):
        publish(directory, OLD | {"large": document(list(range(1000)) * 30)})
    old = {path: item.tokens.tolist() for path, item in OLD.items()}
    assert contents(IndexStore(directory).current()) == old
    assert contents(publish(directory, NEW)) == {path: item.tokens.tolist() for path, item in NEW.items()}


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(IndexStoreError, match="cannot write to the index folder"):
        publish(tmp_path / "file" / "store", OLD)


if __name__ == "__main__":
    print(json.dumps(walk_all_moments(Path(sys.argv[1]))))
