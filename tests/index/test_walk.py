"""Each test names the rule of which files are listed."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from agentspec.errors import InvalidRequestError, NotFoundError
from agentspec.index.walk import check_repository, list_files
from tests.index.conftest import run_git

if TYPE_CHECKING:
    from pathlib import Path


def make(root: Path, *files: str) -> None:
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)


@pytest.fixture(params=["git", "no git"])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    root.mkdir()
    if request.param == "git":
        run_git(root, "init", "--quiet")
    return root


def test_ignored_files_are_not_listed(tree: Path) -> None:
    make(tree, "a.py", "b.log", "keep.log", "sub/c.log", "sub/d.py", "out/e.py")
    (tree / ".gitignore").write_text("*.log\n!keep.log\nout/\n")
    assert list_files(tree) == [b".gitignore", b"a.py", b"keep.log", b"sub/d.py"]


def test_the_innermost_gitignore_decides(tree: Path) -> None:
    make(tree, "a.txt", "sub/a.txt", "sub/deep/a.txt", "other/a.txt")
    (tree / ".gitignore").write_text("a.txt\n")
    (tree / "sub" / ".gitignore").write_text("!a.txt\n")
    (tree / "sub" / "deep" / ".gitignore").write_text("/a.txt\n")
    assert [path for path in list_files(tree) if path.endswith(b"a.txt")] == [b"sub/a.txt"]


def test_an_anchored_pattern_holds_for_its_folder_only(tree: Path) -> None:
    make(tree, "build/a", "sub/build/a")
    (tree / ".gitignore").write_text("/build\n")
    assert list_files(tree) == [b".gitignore", b"sub/build/a"]


def test_names_are_kept_to_the_byte(tree: Path) -> None:
    names = [b"new\nline", b"quote\"'", b"not utf-8 \xff", " é 漢".encode(), b"-dash", b"a\\b", b"#hash"]
    for name in names:
        with open(os.path.join(os.fsencode(tree), name), "wb") as file:  # noqa: PTH118, PTH123 - paths of bytes
            file.write(b"x")
    assert list_files(tree) == sorted(names)


def test_links_are_listed_but_never_followed(tree: Path, tmp_path: Path) -> None:
    make(tmp_path, "outside/secret.py")
    make(tree, "inside/a.py")
    (tree / "out").symlink_to(tmp_path / "outside")
    (tree / "loop").symlink_to(tree)
    assert list_files(tree) == [b"inside/a.py", b"loop", b"out"]


def test_a_link_as_gitignore_is_not_read(tmp_path: Path) -> None:
    make(tmp_path, "rules", "tree/a.py")
    (tmp_path / "rules").write_text("*.py\n")
    (tmp_path / "tree" / ".gitignore").symlink_to(tmp_path / "rules")
    assert b"a.py" in list_files(tmp_path / "tree")


def test_untracked_files_count_unless_ignored(repository: Path) -> None:
    make(repository, "new.py", "junk.tmp")
    (repository / ".gitignore").write_text("*.tmp\n")
    assert list_files(repository) == [b".gitignore", b"alpha.py", b"beta.js", b"new.py"]


def test_tracked_files_count_even_when_ignored(repository: Path) -> None:
    (repository / ".gitignore").write_text("*.py\n")
    assert b"alpha.py" in list_files(repository)


def test_unmerged_files_are_listed_once(repository: Path) -> None:
    blob = subprocess.run(
        ["git", "hash-object", "-w", "alpha.py"], cwd=repository, check=True, capture_output=True, text=True
    ).stdout.strip()
    stages = "".join(f"100644 {blob} {stage}\tclash.py\n" for stage in (1, 2, 3))
    subprocess.run(["git", "update-index", "--index-info"], cwd=repository, input=stages.encode(), check=True)
    make(repository, "clash.py")
    assert list_files(repository).count(b"clash.py") == 1


def test_a_repository_inside_is_one_path(repository: Path) -> None:
    inner = repository / "inner"
    inner.mkdir()
    run_git(inner, "init", "--quiet")
    make(inner, "x.py")
    run_git(inner, "add", ".")
    run_git(inner, "-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "--quiet", "-m", "x")
    assert list_files(repository) == [b"alpha.py", b"beta.js", b"inner"]
    run_git(repository, "add", "inner")
    assert list_files(repository) == [b"alpha.py", b"beta.js", b"inner"]


def test_a_folder_of_a_repository_is_listed_by_itself(repository: Path) -> None:
    make(repository, "sub/a.py", "sub/b.pyc")
    (repository / ".gitignore").write_text("*.pyc\n")
    assert list_files(repository / "sub") == [b"a.py"]


def test_a_folder_that_git_ignores_is_listed_without_git(repository: Path) -> None:
    make(repository, "build/a.py", "build/__pycache__/a.pyc")
    (repository / ".gitignore").write_text("build/\n")
    assert list_files(repository / "build") == [b"a.py"]


def test_git_variables_of_the_caller_do_not_mislead(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_WORK_TREE", "/nowhere")
    assert list_files(repository) == [b"alpha.py", b"beta.js"]


def test_no_program_of_the_repository_is_run(repository: Path, tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    monitor = tmp_path / "monitor"
    monitor.write_text(f"#!/bin/sh\ntouch {trace}\n")
    monitor.chmod(0o755)
    run_git(repository, "config", "core.fsmonitor", str(monitor))
    run_git(repository, "ls-files", "--others")
    assert trace.exists(), "git would run it"
    trace.unlink()
    list_files(repository)
    assert not trace.exists()


def test_without_the_git_program_ignore_files_still_hold(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repository / ".gitignore").write_text("*.js\n")
    monkeypatch.setenv("PATH", "/nowhere")
    assert shutil.which("git") is None
    assert list_files(repository) == [b".gitignore", b"alpha.py"]


def test_caches_and_environments_are_ignored_without_git(tmp_path: Path) -> None:
    make(tmp_path, "a.py", "__pycache__/a.pyc", "node_modules/x.js", ".venv/y.py", ".hg/z", "b.o")
    assert list_files(tmp_path) == [b"a.py"]


def test_a_broken_repository_is_an_error_with_gits_words(repository: Path) -> None:
    (repository / ".git" / "config").write_text("[core\n")
    with pytest.raises(InvalidRequestError, match="git cannot list the files"):
        list_files(repository)


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="does not exist"):
        check_repository(tmp_path / "absent")
    make(tmp_path, "file")
    with pytest.raises(InvalidRequestError, match="is not a folder"):
        check_repository(tmp_path / "file")
    (tmp_path / "link").symlink_to(tmp_path)
    assert check_repository(tmp_path / "link") == tmp_path.resolve()
