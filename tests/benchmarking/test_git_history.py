"""Edits read from real git histories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from agentspec.benchmarking.git_history import MAX_EDITS_PER_COMMIT, MAX_FILE_BYTES, recorded_edits
from agentspec.errors import InvalidRequestError

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import ScratchRepository


def test_an_edit_is_one_modified_source_file(repository: ScratchRepository) -> None:
    repository.commit("start", app__main_py="a = 1\n", app__util_py="u = 1\n", lib__far_py="f = 1\n", logo_png=b"\0\1")
    changed = repository.commit("Raise a\n\nBecause.", app__main_py="a = 2\n")
    (edit,) = recorded_edits(repository.root, 10)
    assert (edit.commit, edit.subject) == (changed, "Raise a")
    assert (edit.before.path, edit.before.text, edit.after) == ("app/main.py", "a = 1\n", "a = 2\n")
    assert [file.path for file in edit.siblings] == ["app/util.py", "lib/far.py"]


def test_siblings_are_those_of_the_parent_commit(repository: ScratchRepository) -> None:
    repository.commit("start", main_py="a = 1\n", util_py="old = 1\n")
    repository.commit("edit both", main_py="a = 2\n", util_py="new = 1\n")
    texts = {edit.before.path: [file.text for file in edit.siblings] for edit in recorded_edits(repository.root, 10)}
    assert texts == {"main.py": ["old = 1\n"], "util.py": ["a = 1\n"]}


def test_additions_deletions_renames_and_merges_are_no_edits(repository: ScratchRepository) -> None:
    repository.commit("start", keep_py="k = 1\n", gone_py="g = 1\n" * 20, moved_py="m = 1\n" * 20)
    repository.commit("add", fresh_py="f = 1\n")
    repository.commit("delete", gone_py=None)
    repository.git("mv", "moved.py", "elsewhere.py")
    repository.git("commit", "-q", "-m", "rename")
    repository.git("checkout", "-q", "-b", "side", "HEAD~1")
    repository.commit("side work", keep_py="k = 2\n")
    repository.git("checkout", "-q", "main")
    repository.git("merge", "-q", "--no-ff", "side", "-m", "merge")
    assert [edit.subject for edit in recorded_edits(repository.root, 10)] == ["side work"]


@pytest.mark.parametrize(
    "content", [b"a = '\xff'\n", b"a = 1\0\n", b"#" * (MAX_FILE_BYTES + 1), b""], ids=["latin", "nul", "large", "empty"]
)
def test_what_is_no_reasonable_text_is_left_out(repository: ScratchRepository, content: bytes) -> None:
    repository.commit("start", odd_py=content, fine_py="a = 1\n")
    repository.commit("edit", odd_py=b"b = 2\n", fine_py="a = 2\n")
    edits = list(recorded_edits(repository.root, 10))
    assert [edit.before.path for edit in edits] == ["fine.py"]
    assert edits[0].siblings == ()


def test_newest_first_up_to_the_limit(repository: ScratchRepository) -> None:
    repository.commit("start", main_py="0\n")
    for number in range(1, 5):
        repository.commit(f"edit {number}", main_py=f"{number}\n")
    assert [edit.subject for edit in recorded_edits(repository.root, 2)] == ["edit 4", "edit 3"]


def test_edits_are_spread_and_chosen_by_their_message(repository: ScratchRepository) -> None:
    repository.commit("start", main_py="0\n")
    for number in range(1, 7):
        author = "\n\nCo-Authored-By: Somebot" if number in (2, 5) else ""
        repository.commit(f"edit {number}{author}", main_py=f"{number}\n")

    def subjects(**chosen: Any) -> list[str]:
        return [edit.subject for edit in recorded_edits(repository.root, 9, **chosen)]

    assert subjects(every=3) == ["edit 6", "edit 3"]
    assert subjects(message="co-authored-by: (some|any)bot") == ["edit 5", "edit 2"]
    assert subjects(message="co-authored-by: nobody") == []


def test_a_sweeping_commit_gives_a_few_edits(repository: ScratchRepository) -> None:
    names = [f"file{number}_py" for number in range(MAX_EDITS_PER_COMMIT + 3)]
    repository.commit("start", **dict.fromkeys(names, "a = 1\n"))
    repository.commit("sweep", **dict.fromkeys(names, "a = 2\n"))
    assert len(list(recorded_edits(repository.root, 100))) == MAX_EDITS_PER_COMMIT


def test_the_repository_is_the_one_that_was_named(
    repository: ScratchRepository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    repository.commit("start", main_py="a = 1\n")
    repository.commit("edit", main_py="a = 2\n")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    assert len(list(recorded_edits(repository.root, 10))) == 1


def test_a_folder_without_a_history_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="git history"):
        list(recorded_edits(tmp_path, 1))


def test_a_missing_git_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidRequestError, match="git is not installed"):
        list(recorded_edits(tmp_path, 1))
