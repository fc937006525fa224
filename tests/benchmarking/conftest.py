"""A scratch git repository and a tokenizer that needs no model."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


class ByteCodec:
    """One token per byte: a `TextCodec` whose round trip is exact."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: list[int]) -> str:
        return bytes(tokens).decode()


@pytest.fixture
def codec() -> ByteCodec:
    return ByteCodec()


class ScratchRepository:
    """Commits what a test says."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(self.root), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.strip()

    def commit(self, subject: str, **files: str | bytes | None) -> str:
        """Write files (`__` in a name is a slash, `_py` its suffix) and commit; None deletes."""
        for name, content in files.items():
            path = self.root / name.replace("__", "/").replace("_py", ".py").replace("_png", ".png")
            if content is None:
                path.unlink()
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        self.git("add", "-A")
        self.git("commit", "-q", "-m", subject)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> ScratchRepository:
    root = tmp_path / "scratch"
    root.mkdir()
    return ScratchRepository(root)
