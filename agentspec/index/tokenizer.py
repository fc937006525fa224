"""The model's tokenizer as the index needs it: its identity, and tokens with their places in the text."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer

from agentspec.errors import IndexStoreError, ModelError
from agentspec.index.durable import write_file
from agentspec.index.manifest import TokenizerIdentity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

TOKENIZER_FILE = "tokenizer.json"
_IDENTITIES_FILE = "tokenizers.json"

_DECISIVE_PARTS = ("added_tokens", "normalizer", "pre_tokenizer", "model")
"""What of a tokenizer decides which tokens a text becomes; the rest is about decoding, padding and templates."""

_OFFSETS_ONLY = "trim_offsets"
"""A flag inside pre-tokenizers that moves reported offsets and no token; libraries set it differently."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenizedText:
    """The tokens of one text.

    Attributes:
        tokens: `int32[L]`.
        starts: `int64[L]`, index of the first character of each token.
        ends: `int64[L]`, index behind its last character.
    """

    tokens: NDArray[np.int32]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


class IndexTokenizer:
    """A tokenizer that is loaded when it is first needed.

    Args:
        source: a model folder, a `tokenizer.json`, or a hub id.
        index_directory: where identities are remembered, so that a run that tokenises nothing loads nothing.

    Raises:
        ModelError: there is no such tokenizer.
    """

    def __init__(self, source: str, index_directory: Path) -> None:
        self.source = source
        self._index_directory = index_directory
        self._file = _locate(source)

    @cached_property
    def identity(self) -> TokenizerIdentity:
        """What this tokenizer is.

        Raises:
            ModelError: it cannot be loaded.
        """
        status = self._file.stat()
        key = json.dumps([str(self._file), status.st_size, status.st_mtime_ns, status.st_ino])
        memory = self._index_directory / _IDENTITIES_FILE
        known = _read_identities(memory)
        if key in known:
            return known[key]
        identity = TokenizerIdentity(
            name=self.source,
            fingerprint=tokenizer_fingerprint(self._tokenizer),
            vocabulary_size=max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1,
        )
        _remember_identities(memory, {**known, key: identity})
        return identity

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        """Tokenise texts as a whole each, in parallel. Text that looks like a special token stays text.

        Raises:
            ModelError: the tokenizer cannot be loaded.
        """
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [
            TokenizedText(np.array(encoding.ids, np.int32), *np.array(encoding.offsets, np.int64).reshape(-1, 2).T)
            for encoding in encodings
        ]

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        try:
            tokenizer = Tokenizer.from_file(str(self._file))
        except Exception as error:  # the Rust side raises plain exceptions
            raise ModelError(f"the tokenizer {self._file} cannot be read: {error}") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        return tokenizer


def tokenizer_fingerprint(tokenizer: Tokenizer) -> str:
    """Hash of everything that decides which tokens a text becomes; equal for equal tokenizers, however stored."""
    content = json.loads(tokenizer.to_str())
    decisive = _without_offset_flags({part: content[part] for part in _DECISIVE_PARTS})
    return hashlib.blake2b(json.dumps(decisive, sort_keys=True).encode(), digest_size=16).hexdigest()


def _without_offset_flags(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_offset_flags(part) for name, part in value.items() if name != _OFFSETS_ONLY}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [_without_offset_flags(part) for part in value]
    return value


def _locate(source: str) -> Path:
    path = Path(source).expanduser()
    if path.is_file():
        return path.resolve()
    if path.is_dir():
        file = path.resolve() / TOKENIZER_FILE
        if not file.is_file():
            raise ModelError(f"{path} holds no {TOKENIZER_FILE}; save the model with its fast tokenizer")
        return file
    return _locate_on_hub(source)


def _locate_on_hub(source: str) -> Path:
    if source.count("/") != 1:
        raise ModelError(
            f"no tokenizer of {source}: it is no model that was pulled, no folder and no hub id (owner/name)"
        )
    from huggingface_hub import hf_hub_download, try_to_load_from_cache  # noqa: PLC0415 - slow and rarely needed

    fetched = try_to_load_from_cache(source, TOKENIZER_FILE)
    if isinstance(fetched, str):
        return Path(fetched).resolve()
    try:
        return Path(hf_hub_download(source, TOKENIZER_FILE)).resolve()
    except Exception as error:  # the hub client raises errors of several libraries
        raise ModelError(f"{source} is no model folder, and the hub has no tokenizer of that name: {error}") from error


def _read_identities(memory: Path) -> dict[str, TokenizerIdentity]:
    try:
        return {key: TokenizerIdentity(**value) for key, value in json.loads(memory.read_bytes()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}  # only a memory: what is missing or damaged is worked out again


def _remember_identities(memory: Path, identities: dict[str, TokenizerIdentity]) -> None:
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        write_file(memory, [json.dumps({key: asdict(value) for key, value in identities.items()}).encode()])
    except (OSError, IndexStoreError):
        return  # not being able to remember must not fail a run that can do without
