"""The tokenizer that traces are made with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from tokenizers import Tokenizer

from agentspec.errors import ModelError
from agentspec.index.tokenizer import TOKENIZER_FILE, tokenizer_fingerprint

if TYPE_CHECKING:
    from pathlib import Path


class FileCodec:
    """A `TextCodec` read from a `tokenizer.json`. Text that looks like a special token stays text.

    Args:
        tokenizer: as the `tokenizers` library has it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer
        self.fingerprint = tokenizer_fingerprint(tokenizer)

    fingerprint: str
    """Tells tokenizers apart, see `tokenizer_fingerprint`; trace files carry it."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a `tokenizer.json`, or the one in a model folder.

        Raises:
            ModelError: there is none, or it cannot be read.
        """
        file = path / TOKENIZER_FILE if path.is_dir() else path
        if not file.is_file():
            raise ModelError(f"no tokenizer at {file}; name a tokenizer.json or a folder that holds one")
        try:
            return cls(Tokenizer.from_file(str(file)))
        except Exception as error:  # the library raises bare exceptions
            raise ModelError(f"{file} is not a tokenizer that can be read: {error}") from error

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, without special tokens added."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, tokens: list[int]) -> str:
        """The text of `tokens`, special tokens included."""
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=False)
        return text
