from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentspec.errors import IndexStoreError, ModelError, NotFoundError
from agentspec.index import build, census
from agentspec.index.build import BuildOptions, build_index, is_stale
from agentspec.index.store import IndexStore, find_store
from agentspec.index.tokenizer import IndexTokenizer
from tests.index.conftest import run_git

if TYPE_CHECKING:
    from pathlib import Path

    from agentspec.index.census import Progress
    from agentspec.index.snapshot import Snapshot

KEY = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj\n"
WELL_UNDER_A_SECOND = 0.5


def snapshot_of(repository: Path, tokenizer: IndexTokenizer, options: BuildOptions) -> Snapshot:
    fingerprint = tokenizer.identity.fingerprint
    return find_store(options.index_directory, repository, fingerprint).current(fingerprint)


def texts_of(repository: Path, tokenizer: IndexTokenizer, options: BuildOptions) -> dict[str, str]:
    from tokenizers import Tokenizer  # noqa: PLC0415

    decode = Tokenizer.from_file(tokenizer.source).decode
    snapshot = snapshot_of(repository, tokenizer, options)
    return {found.path: decode(snapshot.tokens(found).tolist()) for found in snapshot.documents()}


def settle(root: Path) -> None:
    """Let every file look as if it was written a while ago."""
    past = time.time_ns() - 10**10
    for file in root.rglob("*"):
        if file.is_file() and ".git" not in file.parts:
            os.utime(file, ns=(past + 1, past + 1))
    time.sleep(0.1)


def test_whole_files_are_indexed_with_their_marks(
    repository: Path, tokenizer: IndexTokenizer, options: BuildOptions
) -> None:
    report = build_index(repository, tokenizer, options)
    assert (report.files, report.new_documents, report.changed) == (2, 2, True)
    assert texts_of(repository, tokenizer, options) == {
        "alpha.py": (repository / "alpha.py").read_text(),
        "beta.js": (repository / "beta.js").read_text(),
    }
    snapshot = snapshot_of(repository, tokenizer, options)
    assert [(found.path, found.kind.name) for found in snapshot.definitions("first")] == [("alpha.py", "METHOD")]
    assert [found.name for found in snapshot.definitions_in("alpha.py")] == ["Alpha", "first", "second"]
    document = snapshot.document("beta.js")
    assert document is not None
    assert snapshot.identifiers(document).any()
    assert not snapshot.identifiers(document).all()


def test_tokens_are_those_of_the_whole_file(repository: Path, tokenizer: IndexTokenizer, options: BuildOptions) -> None:
    text = "\ufeff" + "def f():\r\n    return 'é'\r\n" * 3
    (repository / "crlf.py").write_bytes(text.encode())
    build_index(repository, tokenizer, options)
    snapshot = snapshot_of(repository, tokenizer, options)
    document = snapshot.document("crlf.py")
    assert document is not None
    (expected,) = tokenizer.tokenize([text.removeprefix("\ufeff")])
    assert np.array_equal(snapshot.tokens(document), expected.tokens)


def test_a_second_run_reads_nothing_and_is_quick(
    repository: Path, tokenizer: IndexTokenizer, options: BuildOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(300):
        (repository / f"file{number}.py").write_text(f"value{number} = {number}\n")
    settle(repository)
    first = build_index(repository, tokenizer, options)
    read: list[bytes] = []
    monkeypatch.setattr("agentspec.index.scan.Scanner.read", lambda _, path: read.append(path))
    monkeypatch.setattr("agentspec.index.tokenizer.Tokenizer", None)
    again = IndexTokenizer(tokenizer.source, options.index_directory)
    began = time.process_time()  # other processes on the machine do not count
    second = build_index(repository, again, options)
    assert time.process_time() - began < WELL_UNDER_A_SECOND
    assert read == []
    assert not second.changed
    assert second.manifest == first.manifest
    assert second.files == first.files == 302
    assert not is_stale(IndexStore(second.store), options.max_file_bytes)


def test_edits_additions_removals_and_renames_are_followed(
    repository: Path, tokenizer: IndexTokenizer, options: BuildOptions
) -> None:
    build_index(repository, tokenizer, options)
    (repository / "alpha.py").write_text("changed = True\n")
    (repository / "beta.js").rename(repository / "gamma.js")
    (repository / "new.py").write_text("added = 1\n")
    store = find_store(options.index_directory, repository, tokenizer.identity.fingerprint)
    assert is_stale(store, options.max_file_bytes)
    report = build_index(repository, tokenizer, options)
    assert report.new_documents == 2, "a renamed file is known by its content"
    expected = {name: (repository / name).read_text() for name in ("alpha.py", "gamma.js", "new.py")}
    assert texts_of(repository, tokenizer, options) == expected
    run_git(repository, "checkout", "--", "alpha.py", "beta.js")
    (repository / "gamma.js").unlink()
    (repository / "new.py").unlink()
    assert build_index(repository, tokenizer, options).changed
    assert set(texts_of(repository, tokenizer, options)) == {"alpha.py", "beta.js"}
    assert not is_stale(store, options.max_file_bytes)


def test_an_edit_that_keeps_size_and_time_is_seen(
    repository: Path, tokenizer: IndexTokenizer, options: BuildOptions
) -> None:
    file = repository / "alpha.py"
    file.write_text("one\n")
    settle(repository)
    times = file.stat()
    build_index(repository, tokenizer, options)
    file.write_text("two\n")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    build_index(repository, tokenizer, options)
    assert texts_of(repository, tokenizer, options)["alpha.py"] == "two\n"


def test_an_edit_right_after_a_run_is_seen(repository: Path, tokenizer: IndexTokenizer, options: BuildOptions) -> None:
    for number in range(20):
        (repository / "alpha.py").write_text(f"{number:02d}\n")
        build_index(repository, tokenizer, options)
        assert texts_of(repository, tokenizer, options)["alpha.py"] == f"{number:02d}\n"


def test_equal_files_are_stored_once(repository: Path, tokenizer: IndexTokenizer, options: BuildOptions) -> None:
    for number in range(5):
        (repository / f"copy{number}.py").write_text("same = 1\n" * 50)
    report = build_index(repository, tokenizer, options)
    assert (report.files, report.new_documents) == (7, 3)
    assert len(texts_of(repository, tokenizer, options)) == 7


@pytest.mark.parametrize("other", ["a.unknown", "a.rb"])
@pytest.mark.parametrize("together", [True, False])
def test_equal_files_in_other_languages_have_marks_of_their_own(
    other: str, together: bool, repository: Path, tokenizer: IndexTokenizer, options: BuildOptions
) -> None:
    """`a.` sorts before `alpha.py`, and without `together` it is even indexed in an earlier run."""
    (repository / other).write_text((repository / "alpha.py").read_text())
    (repository / "alpha.py").rename(repository.parent / "kept")
    if not together:
        build_index(repository, tokenizer, options)
    (repository.parent / "kept").rename(repository / "alpha.py")
    build_index(repository, tokenizer, options)
    snapshot = snapshot_of(repository, tokenizer, options)
    assert [found.name for found in snapshot.definitions_in("alpha.py")] == ["Alpha", "first", "second"]
    assert {found.path for found in snapshot.definitions("second")} == {"alpha.py"}
    marked = {found.path: bool(snapshot.identifiers(found).any()) for found in snapshot.documents()}
    assert marked == {"alpha.py": True, "beta.js": True, other: other == "a.rb"}


def test_secrets_are_nowhere_in_the_store(repository: Path, tokenizer: IndexTokenizer, options: BuildOptions) -> None:
    word = "correcthorsebatterystaple"
    planted = [".env", ".env.local", "id_rsa", "server.pem", "deploy/prod.key", "notes.txt"]
    (repository / "deploy").mkdir()
    for name in planted:
        (repository / name).write_text(f"{KEY}{word}\n")
    (repository / "plain.py").write_text("def harmless():\n    pass\n")
    report = build_index(repository, tokenizer, options)
    assert report.skipped == {"secret": len(planted)}
    (secret,) = tokenizer.tokenize([word])
    needles = [word.encode(), secret.tokens[1:-1].tobytes()]
    (harmless,) = tokenizer.tokenize(["def harmless"])
    found_harmless = False
    for file in options.index_directory.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert not any(needle in content for needle in needles)
            found_harmless |= harmless.tokens.tobytes() in content
    assert found_harmless, "the search would find what is there"


def test_every_reason_is_counted(repository: Path, tokenizer: IndexTokenizer, options: BuildOptions) -> None:
    (repository / "link").symlink_to("alpha.py")
    (repository / "binary").write_bytes(b"\0\1")
    (repository / "latin").write_bytes(b"caf\xe9\n")
    (repository / "empty").touch()
    (repository / "large.txt").write_text("word\n" * 30_000)
    (repository / "vendor").mkdir()
    (repository / "vendor" / "a.go").write_text("package a\n")
    (repository / "yarn.lock").write_text("x\n")
    (repository / "a_pb2.py").write_text("x = 1\n")
    (repository / "a.min.js").write_text("x\n")
    (repository / ".env").write_text("A=1\n")
    os.mkfifo(repository / "pipe")
    run_git(repository, "init", "--quiet", "inner")
    report = build_index(repository, tokenizer, options)
    reasons = "symlink,binary,undecodable,empty,too large,vendored,lock file,generated,minified,secret,submodule"
    assert report.skipped == dict.fromkeys(reasons.split(","), 1), "git does not list pipes"
    assert report.manifest is not None
    assert report.manifest.skipped == report.skipped
    assert build_index(repository, tokenizer, options).skipped == report.skipped


def test_a_dry_run_publishes_nothing(repository: Path, tokenizer: IndexTokenizer, options: BuildOptions) -> None:
    dry = build_index(repository, tokenizer, replace(options, dry_run=True))
    assert (dry.files, dry.new_documents, dry.changed, dry.manifest) == (2, 2, True, None)
    assert not dry.store.exists()
    build_index(repository, tokenizer, options)
    before = {file: file.stat().st_mtime_ns for file in dry.store.iterdir()}
    (repository / "new.py").write_text("x = 1\n")
    dry = build_index(repository, tokenizer, replace(options, dry_run=True))
    assert (dry.files, dry.new_documents, dry.changed) == (3, 1, True)
    assert {file: file.stat().st_mtime_ns for file in dry.store.iterdir()} == before


def test_a_rebuild_uses_nothing_that_is_there(
    repository: Path, tokenizer: IndexTokenizer, options: BuildOptions
) -> None:
    build_index(repository, tokenizer, options)
    report = build_index(repository, tokenizer, replace(options, rebuild=True))
    assert (report.new_documents, report.changed) == (2, True)
    assert report.manifest is not None
    assert report.manifest.generation == 2


def test_a_damaged_index_is_built_anew_and_that_is_said(
    repository: Path, tokenizer: IndexTokenizer, options: BuildOptions
) -> None:
    store = build_index(repository, tokenizer, options).store
    (segment,) = store.glob("*.segment")
    os.truncate(segment, 100)
    report = build_index(repository, tokenizer, options)
    assert report.new_documents == 2
    assert "building it from nothing" in report.warnings[0]
    assert IndexStore(store).verify() == []


def test_marks_of_another_version_are_not_reused(
    repository: Path, tokenizer: IndexTokenizer, options: BuildOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_index(repository, tokenizer, options)
    monkeypatch.setattr(build, "marks_version", lambda: "another")
    assert build_index(repository, tokenizer, options).new_documents == 2


def test_an_interrupted_build_leaves_the_index_as_it_was(
    repository: Path, tokenizer: IndexTokenizer, options: BuildOptions
) -> None:
    store = build_index(repository, tokenizer, options).store
    before = {file.name: file.read_bytes() for file in store.iterdir()}
    for number in range(5):
        (repository / f"new{number}.py").write_text(f"x{number} = 1\n")

    def interrupt(progress: Progress) -> None:
        if progress.files_done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_index(repository, tokenizer, options, interrupt)
    assert {file.name: file.read_bytes() for file in store.iterdir()} == before
    assert build_index(repository, tokenizer, options).files == 7


def test_progress_counts_every_file_and_byte(
    repository: Path, tokenizer: IndexTokenizer, options: BuildOptions
) -> None:
    (repository / ".env").write_text("A=1\n")
    seen: list[Progress] = []
    build_index(repository, tokenizer, options, seen.append)
    sizes = sum((repository / name).stat().st_size for name in ("alpha.py", "beta.js"))
    assert [progress.files_done for progress in seen] == [1, 2, 3]
    assert seen[-1] == census.Progress(3, 3, sizes, sizes)


def test_many_batches_keep_their_order(
    repository: Path, tokenizer: IndexTokenizer, options: BuildOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentspec.index.documents._BATCH_CHARACTERS", 50)
    expected = {f"file{number:02d}.py": f"value = {number}\n" * (number % 7 + 1) for number in range(40)}
    for name, text in expected.items():
        (repository / name).write_text(text)
    build_index(repository, tokenizer, options)
    found = texts_of(repository, tokenizer, options)
    assert {name: found[name] for name in expected} == expected


def test_outside_git_the_same_holds(tmp_path: Path, tokenizer: IndexTokenizer, options: BuildOptions) -> None:
    root = tmp_path / "plain"
    root.mkdir()
    (root / "a.py").write_text("x = 1\n")
    (root / "b.log").write_text("x\n")
    (root / ".gitignore").write_text("*.log\n")
    assert build_index(root, tokenizer, options).files == 2
    assert texts_of(root, tokenizer, options)["a.py"] == "x = 1\n"


def test_an_empty_repository_is_indexed(tmp_path: Path, tokenizer: IndexTokenizer, options: BuildOptions) -> None:
    (tmp_path / "void").mkdir()
    report = build_index(tmp_path / "void", tokenizer, options)
    assert (report.files, report.changed) == (0, True)
    assert not build_index(tmp_path / "void", tokenizer, options).changed


def test_bad_input_is_refused_clearly(tmp_path: Path, tokenizer: IndexTokenizer, options: BuildOptions) -> None:
    with pytest.raises(NotFoundError, match="does not exist"):
        build_index(tmp_path / "absent", tokenizer, options)
    with pytest.raises(ModelError, match="no tokenizer"):
        IndexTokenizer("no such model", options.index_directory)


def test_a_full_disk_leaves_the_generation_before(
    repository: Path, tokenizer: IndexTokenizer, options: BuildOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_index(repository, tokenizer, options)
    (repository / "new.py").write_text("x = 1\n")

    def no_space(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", no_space)
        with pytest.raises(IndexStoreError, match="no space left"):
            build_index(repository, tokenizer, options)
    assert set(texts_of(repository, tokenizer, options)) == {"alpha.py", "beta.js"}
    assert build_index(repository, tokenizer, options).files == 3


def test_an_index_inside_the_repository_does_not_index_itself(repository: Path, tokenizer_file: Path) -> None:
    inside = BuildOptions(repository / "index", max_file_bytes=100_000)
    tokenizer = IndexTokenizer(str(tokenizer_file), inside.index_directory)
    build_index(repository, tokenizer, inside)
    build_index(repository, tokenizer, inside)
    assert not build_index(repository, tokenizer, inside).changed
