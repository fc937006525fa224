from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.errors import IndexStoreError
from agentspec.index._native import sort_contexts
from agentspec.index.segment import (
    SEPARATOR,
    DefinitionKind,
    DefinitionMark,
    IndexedDocument,
    Segment,
    document_table,
    identifier_bits,
    write_segment,
)
from tests.index.conftest import REPOSITORY_ROOT
from tests.index.making import document, random_document

VOCABULARY = 1000


@st.composite
def documents(draw: st.DrawFn) -> IndexedDocument:
    tokens = draw(st.lists(st.integers(0, VOCABULARY - 1), max_size=30))
    places = st.integers(0, len(tokens))
    marks = [
        DefinitionMark(name, kind, min(a, b), max(a, b))
        for name, kind, a, b in draw(
            st.lists(
                st.tuples(st.sampled_from(["f", "é", "", "Name"]), st.sampled_from(DefinitionKind), places, places)
            )
        )
    ]
    marked = [place for place in range(len(tokens)) if draw(st.booleans())]
    return document(tokens, *marks, identifiers=marked)


@settings(deadline=None)
@given(st.lists(documents(), min_size=1, max_size=8))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, given_documents: list[IndexedDocument]
) -> None:
    segment = write_segment(tmp_path_factory.mktemp("segment") / "s", given_documents, VOCABULARY)
    expected = [token for item in given_documents for token in [*item.tokens.tolist(), SEPARATOR]]
    assert segment.tokens.tolist() == expected
    assert segment.order.tolist() == sort_contexts(np.array(expected, np.int32)).tolist()
    assert segment.vocabulary_size == VOCABULARY
    names = set()
    for number, (item, entry) in enumerate(zip(given_documents, document_table(segment), strict=True)):
        start, length = int(entry["start"]), int(entry["length"])
        assert segment.tokens[start : start + length].tolist() == item.tokens.tolist()
        assert identifier_bits(segment, start, length).tolist() == item.identifiers.tolist()
        assert entry["blob"].tobytes() == item.blob
        assert [segment.document_at(position) for position in range(start, start + length)] == [number] * length
        assert segment.document_at(start + length) == 2**32 - 1, "a separator belongs to no document"
        names |= {(mark.name, start + mark.start, mark.end - mark.start, int(mark.kind)) for mark in item.definitions}
    found = [segment.definition(index) for index in range(segment.definition_count)]
    assert {(name.decode(), *rest) for name, *rest in found} == names
    for name in {name for name, *_ in names} | {"absent"}:
        first, last = segment.definitions_named(name)
        assert {segment.definition(index)[0].decode() for index in range(first, last)} <= {name}
        assert last - first == sum(entry[0].decode() == name for entry in found)


def test_positions_outside_the_segment_belong_to_nothing(tmp_path: Path) -> None:
    segment = write_segment(tmp_path / "s", [document([1, 2], identifiers=[0, 1])], VOCABULARY)
    for position in (-1, 3, 2**40):
        assert segment.document_at(position) == 2**32 - 1
        assert not segment.is_identifier(position)
    assert [segment.is_identifier(position) for position in range(3)] == [True, True, False]


def test_a_segment_costs_less_than_nine_bytes_per_token(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    segment = write_segment(tmp_path / "s", [random_document(generator, 500) for _ in range(100)], VOCABULARY)
    assert segment.file_size / segment.order_size < 9


@pytest.mark.parametrize("token", [-1, VOCABULARY])
def test_tokens_outside_the_vocabulary_are_refused(tmp_path: Path, token: int) -> None:
    with pytest.raises(ValueError, match="outside"):
        write_segment(tmp_path / "s", [document([token])], VOCABULARY)


def test_mapped_memory_cannot_be_written(tmp_path: Path) -> None:
    segment = write_segment(tmp_path / "s", [document([1, 2, 3])], VOCABULARY)
    with pytest.raises(ValueError, match="read-only"):
        segment.tokens[0] = 7


def test_a_view_keeps_the_mapping(tmp_path: Path) -> None:
    tokens = write_segment(tmp_path / "s", [document([1, 2, 3])], VOCABULARY).tokens
    assert tokens.tolist() == [1, 2, 3, SEPARATOR]


def test_every_cut_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s"
    size = write_segment(path, [document([1, 2, 3])], VOCABULARY).file_size
    content = path.read_bytes()
    for length in range(size):
        path.write_bytes(content[:length])
        with pytest.raises(IndexStoreError, match="index"):
            Segment.open(str(path))


def test_every_flipped_bit_of_header_and_tables_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s"
    mark = DefinitionMark("name", DefinitionKind.CLASS, 0, 2)
    segment = write_segment(path, [document([1, 2, 3], mark)], VOCABULARY)
    content = path.read_bytes()
    tables_end = 64 + 64 + 64 + 64  # header, one document, one definition, one name
    assert segment.file_size == tables_end + 3 * 64
    for position in range(tables_end):
        broken = bytearray(content)
        broken[position] ^= 1 << (position % 8)
        path.write_bytes(broken)
        with pytest.raises(IndexStoreError):
            Segment.open(str(path))


def test_missing_and_empty_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(IndexStoreError, match="cannot be opened"):
        Segment.open(str(tmp_path / "absent"))
    (tmp_path / "empty").touch()
    with pytest.raises(IndexStoreError, match="is empty"):
        Segment.open(str(tmp_path / "empty"))


def run_python(*lines: str, arguments: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run a program of its own: what it tests would end the process if it failed."""
    script = "import sys, os\nfrom agentspec.index.segment import *\n" + textwrap.dedent("\n".join(lines))
    command = [sys.executable, *arguments[:-1], "-c", script, arguments[-1]]
    return subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY_ROOT, check=False)


@pytest.fixture
def large_segment(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    generator = np.random.default_rng(0)
    write_segment(path, [random_document(generator, 20_000) for _ in range(3)], VOCABULARY)
    return path


@pytest.mark.parametrize("kept_bytes", [0, 1, 4096, 100_000])
def test_a_file_truncated_while_mapped_reads_as_zeros_and_says_so(large_segment: Path, kept_bytes: int) -> None:
    done = run_python(
        "segment = Segment.open(sys.argv[1])",
        f"os.truncate(sys.argv[1], {kept_bytes})",
        "print(int(segment.order[-1]), segment.damaged)",
        "print(int(segment.tokens.max()) < segment.vocabulary_size)",
        arguments=(str(large_segment),),
    )
    assert (done.returncode, done.stdout.split()) == (0, ["0", "True", "True"]), done.stderr


def test_damage_is_survived_on_another_thread_and_under_faulthandler(large_segment: Path) -> None:
    done = run_python(
        "import faulthandler, threading",
        "segment = Segment.open(sys.argv[1])",
        "faulthandler.enable()",
        "os.truncate(sys.argv[1], 0)",
        "thread = threading.Thread(target=lambda: print(int(segment.order.sum())))",
        "thread.start(); thread.join()",
        "print(segment.damaged)",
        arguments=("-X", "faulthandler", str(large_segment)),
    )
    assert (done.returncode, done.stdout.split()) == (0, ["0", "True"]), done.stderr


def test_a_deleted_file_stays_readable(large_segment: Path) -> None:
    segment = Segment.open(str(large_segment))
    large_segment.unlink()
    assert int(segment.tokens[-1]) == SEPARATOR
    assert not segment.damaged


def test_a_bus_error_elsewhere_still_ends_the_process(large_segment: Path) -> None:
    done = run_python(
        "import mmap",
        "segment = Segment.open(sys.argv[1])",
        "file = open(sys.argv[1] + '.other', 'wb+'); file.truncate(8192)",
        "other = mmap.mmap(file.fileno(), 8192)",
        "file.truncate(0)",
        "print('before', flush=True)",
        "print(other[5000])",
        arguments=(str(large_segment),),
    )
    assert done.stdout.split() == ["before"]
    assert done.returncode < 0, "killed by the signal"


def test_one_damaged_segment_does_not_mark_another(large_segment: Path, tmp_path: Path) -> None:
    done = run_python(
        "import shutil",
        "shutil.copy(sys.argv[1], sys.argv[1] + '.copy')",
        "damaged, whole = Segment.open(sys.argv[1]), Segment.open(sys.argv[1] + '.copy')",
        "os.truncate(sys.argv[1], 0)",
        "print(int(damaged.order.sum()), damaged.damaged, whole.damaged, int(whole.order.sum()) > 0)",
        arguments=(str(large_segment),),
    )
    assert done.stdout.split() == ["0", "True", "False", "True"], done.stderr


def test_closed_segments_free_what_they_held(large_segment: Path) -> None:
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("mappings are listed on Linux only")
    for _ in range(300):
        assert Segment.open(str(large_segment)).size == 60_003
    assert str(large_segment) not in maps.read_text()
