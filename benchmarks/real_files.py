"""Source files of this machine as tokens, no content twice: what a growing index is made of."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

SUFFIXES = (
    *(".py", ".pyi", ".pyx", ".c", ".h", ".cc", ".cpp", ".cxx", ".hpp", ".cu", ".cuh", ".inl", ".inc", ".js", ".mjs"),
    *(".ts", ".tsx", ".jsx", ".go", ".rs", ".java", ".rb", ".php", ".sh", ".pl", ".pm", ".lua", ".md", ".rst", ".toml"),
    *(".yaml", ".css", ".cmake", ".proto", ".sql", ".kt", ".swift"),
)
MIN_BYTES, MAX_BYTES = 200, 1_000_000
SEPARATOR = -1
BATCH = 256
"""Files tokenised at once."""


def source_files(roots: Iterable[Path]) -> Iterator[str]:
    """Texts of all source files below `roots`, each content once, in an order that mixes the folders."""
    files = [
        Path(folder, name)
        for root in roots
        for folder, _, names in os.walk(root)
        for name in names
        if Path(name).suffix in SUFFIXES
    ]
    files.sort(key=lambda file: hashlib.blake2b(os.fsencode(file)).digest())
    seen: set[bytes] = set()
    for file in files:
        try:
            if file.is_symlink() or not MIN_BYTES <= file.stat().st_size <= MAX_BYTES:
                continue
            content = file.read_bytes()
            text = content.decode()
        except (OSError, UnicodeDecodeError):
            continue
        digest = hashlib.blake2b(content).digest()
        if b"\0" not in content and digest not in seen:
            seen.add(digest)
            yield text


def tokenised(roots: Iterable[Path], tokenizer: Path, tokens: int, kept: Path) -> NDArray[np.int32]:
    """`int32[N]`, N >= `tokens` if there are that many: files with `SEPARATOR` behind each.

    Args:
        roots: folders that are searched.
        tokenizer: a `tokenizer.json`.
        tokens: as many are wanted.
        kept: raw file that keeps the tokens for the next run.
    """
    if not kept.exists() or kept.stat().st_size < 4 * tokens:
        encoder = Tokenizer.from_file(str(tokenizer))
        written = 0
        partial = kept.with_suffix(".partial")
        with partial.open("wb") as target:
            for batch in _batches(source_files(roots)):
                for encoding in encoder.encode_batch_fast(batch, add_special_tokens=False):
                    target.write(np.array([*encoding.ids, SEPARATOR], np.int32).tobytes())
                    written += len(encoding.ids) + 1
                if written >= tokens:
                    break
        partial.rename(kept)
    return np.memmap(kept, np.int32, "r")


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    for text in texts:
        batch.append(text)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
