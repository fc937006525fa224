"""Trace files: what is built from a history comes back as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from agentspec.benchmarking.formats import FORMATS
from agentspec.benchmarking.git_history import recorded_edits
from agentspec.benchmarking.traces import Trace, TraceSet, build_traces, load_traces, save_traces
from agentspec.errors import InvalidRequestError

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import ByteCodec, ScratchRepository


@pytest.fixture
def traces(repository: ScratchRepository, codec: ByteCodec) -> tuple[Trace, ...]:
    repository.commit("start", main_py="a = 1\nb = 1\n", util_py="u = 1\n")
    repository.commit("second", main_py="a = 2\nb = 1\n")
    repository.commit("third", main_py="a = 3\nb = 1\n")
    return build_traces(recorded_edits(repository.root, 10), codec, list(FORMATS), max_tokens=10_000)


def test_every_edit_is_rendered_in_every_format(traces: tuple[Trace, ...], codec: ByteCodec) -> None:
    assert [trace.format for trace in traces] == [*FORMATS, *FORMATS]
    whole = traces[0]
    assert codec.decode(whole.output.tolist()) == "```\na = 3\nb = 1\n```\n"
    assert [document.path for document in whole.documents] == ["util.py", "main.py"]
    assert codec.decode(whole.documents[-1].tokens.tolist()) == "a = 2\nb = 1\n"
    assert len({trace.id for trace in traces}) == len(traces)


def test_a_document_that_traces_share_is_held_once(traces: tuple[Trace, ...]) -> None:
    assert traces[0].documents[0] is traces[-1].documents[0]


def test_what_is_too_long_is_left_out(repository: ScratchRepository, codec: ByteCodec) -> None:
    repository.commit("start", long_py="a = 1\n" * 50, short_py="a\n")
    repository.commit("edit", long_py="a = 2\n" * 50, short_py="b\n")
    edits = list(recorded_edits(repository.root, 10))
    assert [trace.path for trace in build_traces(edits, codec, ["whole-file"], max_tokens=250)] == ["short.py"]


def test_a_file_gives_back_what_was_saved(traces: tuple[Trace, ...], tmp_path: Path) -> None:
    save_traces(tmp_path / "traces.npz", TraceSet(traces, "bytes"))
    recorded = load_traces(tmp_path / "traces.npz")
    assert recorded.tokenizer == "bytes"
    loaded = recorded.traces
    for before, after in zip(traces, loaded, strict=True):
        assert (before.id, before.format, before.path) == (after.id, after.format, after.path)
        np.testing.assert_array_equal(before.prompt, after.prompt)
        np.testing.assert_array_equal(before.output, after.output)
        assert after.output.dtype == np.int32
        for old, new in zip(before.documents, after.documents, strict=True):
            assert old.path == new.path
            np.testing.assert_array_equal(old.tokens, new.tokens)
    assert loaded[0].documents[0] is loaded[-1].documents[0]


def test_no_traces_make_a_valid_file(tmp_path: Path) -> None:
    save_traces(tmp_path / "none.npz", TraceSet((), "bytes"))
    assert load_traces(tmp_path / "none.npz") == TraceSet((), "bytes")


def test_an_unknown_format_is_named(codec: ByteCodec) -> None:
    with pytest.raises(InvalidRequestError, match="haiku"):
        build_traces([], codec, ["haiku"], max_tokens=1)


def test_other_files_are_refused(tmp_path: Path, traces: tuple[Trace, ...]) -> None:
    file = tmp_path / "traces.npz"
    with pytest.raises(InvalidRequestError, match="does not exist"):
        load_traces(file)
    file.write_bytes(b"no archive")
    with pytest.raises(InvalidRequestError, match="is not a trace file"):
        load_traces(file)
    np.savez(file, unrelated=np.arange(3))
    with pytest.raises(InvalidRequestError, match="is not a trace file"):
        load_traces(file)
    save_traces(file, TraceSet(traces, "bytes"))
    content = file.read_bytes()
    for length in (0, 10, len(content) // 2, len(content) - 1):
        file.write_bytes(content[:length])
        with pytest.raises(InvalidRequestError, match="is not a trace file"):
            load_traces(file)
