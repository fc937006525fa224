from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from agentspec.index.build import BuildOptions
from agentspec.index.tokenizer import IndexTokenizer

REPOSITORY_ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small byte-level BPE tokenizer, trained on this project's own index room."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(file) for file in sorted((REPOSITORY_ROOT / "agentspec" / "index").glob("*.py"))], trainer)
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(file))
    return file


@pytest.fixture
def index_directory(tmp_path: Path) -> Path:
    return tmp_path / "indexes"


@pytest.fixture
def tokenizer(tokenizer_file: Path, index_directory: Path) -> IndexTokenizer:
    return IndexTokenizer(str(tokenizer_file), index_directory)


@pytest.fixture
def options(index_directory: Path) -> BuildOptions:
    return BuildOptions(index_directory, max_file_bytes=100_000)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A small git repository with two source files."""
    root = tmp_path / "project"
    root.mkdir()
    run_git(root, "init", "--quiet")
    (root / "alpha.py").write_text(
        "class Alpha:\n    def first(self):\n        return 1\n\n\ndef second():\n    pass\n"
    )
    (root / "beta.js").write_text("export function third(x) {\n  return x;\n}\n")
    run_git(root, "add", ".")
    run_git(root, "-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "--quiet", "-m", "begin")
    return root


def run_git(root: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True)
