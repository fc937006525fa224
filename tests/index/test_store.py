from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.errors import IndexStoreError, TokenizerMismatchError
from agentspec.index.merge import MAX_SEGMENTS, plan_merge
from agentspec.index.segment import DefinitionKind, DefinitionMark, Segment
from agentspec.index.store import IndexStore, find_store, list_stores, store_directory
from agentspec.index.writer import open_writer
from tests.index.conftest import REPOSITORY_ROOT
from tests.index.making import IDENTITY, contents, document, publish, random_document

if TYPE_CHECKING:
    from pathlib import Path

    from agentspec.index.segment import IndexedDocument

OTHER = replace(IDENTITY, name="letters", fingerprint="fingerprint-of-letters")

EDITS = st.lists(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 12), max_size=4), min_size=1, max_size=12)


@settings(deadline=None, max_examples=20)
@given(EDITS)
def test_each_generation_holds_exactly_its_files(
    tmp_path_factory: pytest.TempPathFactory, edits: list[dict[str, int]]
) -> None:
    """Contents 0 to 9 are files; from 10 on the path is removed. Reverting to earlier content is frequent."""
    generator = np.random.default_rng(0)
    pool = [random_document(generator, 5 + 40 * number) for number in range(10)]
    directory = tmp_path_factory.mktemp("store")
    files: dict[str, IndexedDocument] = {}
    for number, edit in enumerate(edits):
        files = {path: item for path, item in files.items() if edit.get(path, 0) < 10}
        files |= {path: pool[content] for path, content in edit.items() if content < 10}
        snapshot = publish(directory, files)
        assert snapshot.generation == number + 1
        assert contents(snapshot) == {path: item.tokens.tolist() for path, item in sorted(files.items())}
        for found in snapshot.documents():
            item = files[found.path]
            assert snapshot.identifiers(found).tolist() == item.identifiers.tolist()
            assert [(d.start, d.end) for d in snapshot.definitions_in(found.path)] == [(0, len(item.tokens))]
            assert snapshot.is_live(found.segment, found.number)
        live = sum(int(np.bitwise_count(words).sum()) for words in snapshot.live)
        assert live == len({item.blob for item in files.values()}), "documents that no path names are dead"
        assert IndexStore(directory).verify() == []


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(0, 1)), max_size=8), st.integers(0, 10**6))
def test_merging_bounds_the_number_of_segments(sizes: list[tuple[int, float]], new_tokens: int) -> None:
    totals = [(total, int(total * share)) for total, share in sizes]
    merged = plan_merge(totals, new_tokens)
    written = bool(new_tokens or sum(totals[number][1] for number in merged))
    assert len(totals) - len(merged) + written <= MAX_SEGMENTS
    for number, (total, live) in enumerate(totals):
        if live < total / 2:
            assert number in merged, "mostly dead segments are written anew"


def test_small_additions_leave_large_segments_alone() -> None:
    assert plan_merge([(10**6, 10**6), (10**4, 10**4)], 100) == set()
    assert plan_merge([(10**6, 10**6), (10**4, 10**4)], 6000) == {1}


def test_tokens_are_written_anew_a_logarithmic_number_of_times() -> None:
    sizes: list[tuple[int, int]] = []
    written = 0
    for _ in range(1000):
        merged = plan_merge(sizes, 100)
        size = 100 + sum(sizes[number][1] for number in merged)
        sizes = [entry for number, entry in enumerate(sizes) if number not in merged] + [(size, size)]
        written += size
    assert written / (1000 * 100) < 12
    assert len(sizes) <= MAX_SEGMENTS


def test_what_no_file_holds_any_more_is_dropped_by_merges(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for _ in range(40):
        publish(tmp_path, {"edited": random_document(generator, 100)})
        manifest = IndexStore(tmp_path).manifest()
        assert sum(segment.tokens for segment in manifest.segments) <= 3 * manifest.tokens


def test_a_new_generation_opens_only_new_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    files = {"large": random_document(generator, 50_000)}
    publish(tmp_path, files)
    store = IndexStore(tmp_path)
    first = store.current()
    publish(tmp_path, files | {"small": random_document(generator, 10)})
    opened = []
    real_open = Segment.open
    monkeypatch.setattr("agentspec.index.store.Segment.open", lambda path: opened.append(path) or real_open(path))
    second = store.current()
    assert len(opened) == 1
    assert second.segments[0] is first.segments[0]
    assert store.current() is second


def test_following_costs_less_than_a_millisecond(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    files = {f"folder/file{number}": random_document(generator, 300) for number in range(1000)}
    publish(tmp_path, files)
    store = IndexStore(tmp_path)
    store.current()
    pauses = []
    for number in range(7):
        files[f"new{number}"] = random_document(generator, 20)
        publish(tmp_path, files)
        began = time.thread_time()  # other processes on the machine do not count
        assert store.current().document(f"new{number}") is not None
        pauses.append(time.thread_time() - began)
    assert min(pauses) < 1e-3


def test_readers_keep_their_generation(tmp_path: Path) -> None:
    old = document([1, 2, 3])
    snapshot = publish(tmp_path, {"a": old})
    publish(tmp_path, {"b": document([4, 5, 6, 7])})
    assert contents(snapshot) == {"a": [1, 2, 3]}
    assert contents(IndexStore(tmp_path).current()) == {"b": [4, 5, 6, 7]}


def test_files_of_earlier_generations_and_of_crashes_are_removed(tmp_path: Path) -> None:
    publish(tmp_path, {"a": document([1, 2, 3])})
    (tmp_path / "half.segment.tmp").write_bytes(b"left by a crash")
    (tmp_path / "stray.segment").write_bytes(b"left by a crash")
    publish(tmp_path, {"b": document([4, 5, 6, 7])})
    manifest = IndexStore(tmp_path).manifest()
    assert {file.name for file in tmp_path.iterdir()} == {*manifest.file_names(), "manifest.json", "lock", ".gitignore"}


def test_definitions_are_found_by_name_in_every_file_that_holds_them(tmp_path: Path) -> None:
    item = document([1, 2, 3, 4], DefinitionMark("f", DefinitionKind.FUNCTION, 1, 3))
    other = document([5, 6], DefinitionMark("f", DefinitionKind.CLASS, 0, 2))
    snapshot = publish(tmp_path, {"a": item, "copy of a": item, "b": other})
    found = {(d.path, d.kind, d.start, d.end) for d in snapshot.definitions("f")}
    assert found == {
        ("a", DefinitionKind.FUNCTION, 1, 3),
        ("copy of a", DefinitionKind.FUNCTION, 1, 3),
        ("b", DefinitionKind.CLASS, 0, 2),
    }
    publish(tmp_path, {"b": other})
    assert {d.path for d in IndexStore(tmp_path).current().definitions("f")} == {"b"}
    assert snapshot.definitions("g") == []
    assert snapshot.definitions_in("absent") == []
    assert snapshot.document("absent") is None


def test_paths_that_are_not_utf8_keep_their_bytes(tmp_path: Path) -> None:
    snapshot = publish(tmp_path, {"odd\udcff\nname": document([1])})
    assert [found.path for found in snapshot.documents()] == ["odd\udcff\nname"]
    assert snapshot.document("odd\udcff\nname") is not None


def test_an_empty_repository_has_an_empty_generation(tmp_path: Path) -> None:
    snapshot = publish(tmp_path, {})
    assert (len(snapshot), snapshot.segments, list(snapshot.documents())) == (0, (), [])
    assert contents(publish(tmp_path, {"a": document([1])})) == {"a": [1]}
    assert contents(publish(tmp_path, {})) == {}


def test_documents_without_tokens_are_kept(tmp_path: Path) -> None:
    assert contents(publish(tmp_path, {"nothing": document([]), "a": document([1])})) == {"a": [1], "nothing": []}


def test_another_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    publish(tmp_path, {"a": document([1])})
    store = IndexStore(tmp_path)
    assert contents(store.current(IDENTITY.fingerprint)) == {"a": [1]}
    with pytest.raises(TokenizerMismatchError, match="numbers"):
        store.current(OTHER.fingerprint)


def test_documents_of_another_tokenizer_are_not_reused(tmp_path: Path) -> None:
    item = document([1])
    publish(tmp_path, {"a": item})
    with open_writer(IndexStore(tmp_path), OTHER, marks="test") as writer:
        assert not writer.knows(item.blob)
    with open_writer(IndexStore(tmp_path), IDENTITY, marks="other marks") as writer:
        assert not writer.knows(item.blob)
    with open_writer(IndexStore(tmp_path), IDENTITY, marks="test") as writer:
        assert writer.knows(item.blob)


def test_stores_are_found_by_repository_and_tokenizer(tmp_path: Path) -> None:
    repository = tmp_path / "project"
    repository.mkdir()
    with pytest.raises(IndexStoreError, match="is not indexed; run: agentspec index"):
        find_store(tmp_path, repository, IDENTITY.fingerprint)
    publish(store_directory(tmp_path, repository, IDENTITY.fingerprint), {"a": document([1])})
    assert contents(find_store(tmp_path, repository, IDENTITY.fingerprint).current()) == {"a": [1]}
    with pytest.raises(TokenizerMismatchError, match="numbers"):
        find_store(tmp_path, repository, OTHER.fingerprint)
    assert [store.manifest().tokenizer for store in list_stores(tmp_path)] == [IDENTITY]


def test_two_repositories_of_one_name_have_two_stores(tmp_path: Path) -> None:
    one, two = tmp_path / "one" / "project", tmp_path / "two" / "project"
    assert store_directory(tmp_path, one, "f") != store_directory(tmp_path, two, "f")


def test_a_store_without_generations_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(IndexStoreError, match="run agentspec index first"):
        IndexStore(tmp_path / "absent").current()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"null", b"[]", b"{}", b'{"format": 99}', b'{"format": 1}', b'{"format": 1, "segments": 3}', b"\xff"],
)
def test_damaged_manifests_are_refused_and_built_over(tmp_path: Path, content: bytes) -> None:
    publish(tmp_path, {"a": document([1])})
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(IndexStoreError, match="build the index again"):
        IndexStore(tmp_path).current()
    with open_writer(IndexStore(tmp_path), IDENTITY, marks="test") as writer:
        assert writer.damage is not None
    assert contents(publish(tmp_path, {"b": document([2])})) == {"b": [2]}


def test_a_truncated_segment_is_refused_and_built_over(tmp_path: Path) -> None:
    publish(tmp_path, {"a": document([1, 2, 3])})
    (segment,) = tmp_path.glob("*.segment")
    segment.write_bytes(segment.read_bytes()[:-64])
    with pytest.raises(IndexStoreError, match="bytes where"):
        IndexStore(tmp_path).current()
    assert contents(publish(tmp_path, {"a": document([1, 2, 3])})) == {"a": [1, 2, 3]}


def test_a_missing_file_is_an_error_not_a_loop(tmp_path: Path) -> None:
    publish(tmp_path, {"a": document([1, 2, 3])})
    (segment,) = tmp_path.glob("*.segment")
    segment.unlink()
    with pytest.raises(IndexStoreError, match="cannot be opened"):
        IndexStore(tmp_path).current()


def test_verify_reads_every_byte(tmp_path: Path) -> None:
    publish(tmp_path, {"a": document(list(range(100)))})
    store = IndexStore(tmp_path)
    assert store.verify() == []
    (segment,) = tmp_path.glob("*.segment")
    content = bytearray(segment.read_bytes())
    content[-100] ^= 1
    segment.write_bytes(content)
    assert store.verify() == [f"{segment.name} does not hold what was written"]
    segment.unlink()
    assert len(store.verify()) == 1


def test_a_second_writer_is_told_so(tmp_path: Path) -> None:
    with (
        open_writer(IndexStore(tmp_path), IDENTITY, marks="test"),
        pytest.raises(IndexStoreError, match="another agentspec index"),
        open_writer(IndexStore(tmp_path), IDENTITY, marks="test"),
    ):
        pass
    publish(tmp_path, {"a": document([1])})


def test_the_lock_of_a_killed_writer_is_free(tmp_path: Path) -> None:
    script = (
        "import os, sys, pathlib\n"
        "from tests.index.making import IDENTITY\n"
        "from agentspec.index.store import IndexStore\n"
        "from agentspec.index.writer import open_writer\n"
        "with open_writer(IndexStore(pathlib.Path(sys.argv[1])), IDENTITY, marks='test'):\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=REPOSITORY_ROOT, check=False)
    assert done.returncode == -9
    assert contents(publish(tmp_path, {"a": document([1])})) == {"a": [1]}


def test_readers_always_see_whole_generations_while_one_writes(tmp_path: Path) -> None:
    """Generation g has one file `g`, whose tokens all are g; readers open stores of their own all along."""
    publish(tmp_path, {"1": document([1] * 50)})
    problems: list[object] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            snapshot = IndexStore(tmp_path).current()
            seen = contents(snapshot)
            if seen != {str(snapshot.generation): [snapshot.generation] * 50}:
                problems.append(seen)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for generation in range(2, 60):
        publish(tmp_path, {str(generation): document([generation] * 50)})
    done.set()
    for reader in readers:
        reader.join()
    assert problems == []


def test_the_manifest_is_for_people_too(tmp_path: Path) -> None:
    publish(tmp_path, {"a": document([1, 2])})
    content = json.loads((tmp_path / "manifest.json").read_text())
    assert (content["generation"], content["files"], content["repository"]) == (1, 1, "/project")
    manifest = IndexStore(tmp_path).manifest()
    assert manifest.tokens == 2
    assert manifest.size_bytes == sum((tmp_path / name).stat().st_size for name in manifest.file_names())
