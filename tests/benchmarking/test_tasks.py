"""Tasks made from a repository's files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agentspec.benchmarking.codec import FileCodec
from agentspec.benchmarking.tasks import KINDS, editing_tasks
from agentspec.errors import InvalidRequestError, ModelError
from agentspec.index.build import BuildOptions, build_index
from agentspec.index.store import IndexStore
from agentspec.index.tokenizer import IndexTokenizer
from tests.engines.local.tiny_target import train_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from agentspec.index.snapshot import Snapshot

    from .conftest import ScratchRepository

SMALL = "a = 1\n"
FITTING = "".join(f"# line {number}\n" for number in range(10)) + (
    'class Greeter:\n    """Says hello."""\n\n    def greet(self, name):\n        print("Hello " + name)\n\n\n'
    "def main():\n    Greeter().greet('é')"
)
LARGE = FITTING * 20


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer().save_pretrained(folder)
    return folder


def snapshot_of(repository: ScratchRepository, tokenizer: Path, index: Path) -> Snapshot:
    report = build_index(repository.root, IndexTokenizer(str(tokenizer), index), BuildOptions(index, 1_000_000))
    return IndexStore(report.store).current()


@pytest.fixture
def snapshot(repository: ScratchRepository, tokenizer: Path, tmp_path: Path) -> Snapshot:
    repository.commit(
        "start", small_py=SMALL, large_py=LARGE, notes=FITTING + "\n", one_py=FITTING, two_py=FITTING + "\n\n"
    )
    return snapshot_of(repository, tokenizer, tmp_path / "index")


def test_tasks_are_about_fitting_source_files(snapshot: Snapshot, tokenizer: Path) -> None:
    tasks = editing_tasks(snapshot, FileCodec.load(tokenizer), list(KINDS), 8)
    assert [task.kind for task in tasks] == [*KINDS, *KINDS]
    assert {task.edited_path for task in tasks} == {"one.py", "two.py"}
    assert len({task.name for task in tasks}) == 8
    for task in tasks:
        assert FITTING in task.prompt
        assert "Greeter" in task.prompt.replace(FITTING, "")
        assert task.max_tokens > 0
    assert tasks == editing_tasks(snapshot, FileCodec.load(tokenizer), list(KINDS), 8)


def test_a_search_block_holds_whole_lines_of_the_definition(snapshot: Snapshot, tokenizer: Path) -> None:
    (task,) = editing_tasks(snapshot, FileCodec.load(tokenizer), ["search-replace"], 1)
    block = task.prompt.partition("<<<<<<< SEARCH\n")[2]
    assert block == (
        'class Greeter:\n    """Says hello."""\n\n    def greet(self, name):\n        print("Hello " + name)\n=======\n'
    )


def test_a_search_block_begins_with_its_line(repository: ScratchRepository, tokenizer: Path, tmp_path: Path) -> None:
    body = "".join(f"# line {number}\n" for number in range(20))
    repository.commit("start", inner_py=f"if True:\n    def inner():\n        return 1\n{body}")
    snapshot = snapshot_of(repository, tokenizer, tmp_path / "index")
    (task,) = editing_tasks(snapshot, FileCodec.load(tokenizer), ["search-replace"], 1)
    assert task.prompt.endswith("<<<<<<< SEARCH\n    def inner():\n        return 1\n=======\n")


def test_without_a_fitting_file_there_is_no_task(
    repository: ScratchRepository, tokenizer: Path, tmp_path: Path
) -> None:
    repository.commit("start", small_py=SMALL, large_py=LARGE)
    with pytest.raises(InvalidRequestError, match="no source file"):
        editing_tasks(snapshot_of(repository, tokenizer, tmp_path / "index"), FileCodec.load(tokenizer), list(KINDS), 1)


def test_a_codec_keeps_text_and_special_words_apart(tokenizer: Path) -> None:
    codec = FileCodec.load(tokenizer / "tokenizer.json")
    text = "<s> is text here: é\n<|end|>"
    assert codec.decode(codec.encode(text)) == text
    assert 0 not in codec.encode(text)


def test_what_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no tokenizer"):
        FileCodec.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="not a tokenizer"):
        FileCodec.load(tmp_path)
