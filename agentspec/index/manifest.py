"""The manifest: the one small file whose atomic replacement publishes a generation."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from agentspec.errors import IndexStoreError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MANIFEST_NAME = "manifest.json"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class TokenizerIdentity:
    """Which tokenizer made the tokens of an index.

    Attributes:
        name: the model folder or hub id it came from, for people.
        fingerprint: hash of everything that decides tokenisation.
        vocabulary_size: all its tokens are below this.
    """

    name: str
    fingerprint: str
    vocabulary_size: int


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """One segment of a generation.

    Attributes:
        file: name of its file; derived from its content.
        tokens: tokens of all its documents.
        live_tokens: tokens of the documents that this generation names.
        file_bytes: size of the file.
    """

    file: str
    tokens: int
    live_tokens: int
    file_bytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What one generation consists of.

    Attributes:
        generation: ascending number.
        repository: absolute path of the indexed repository.
        tokenizer: the tokenizer of all segments.
        marks: version of the syntax marks (see `agentspec.index.syntax`).
        segments: in the order in which the catalog numbers them.
        catalog: name of the catalog file.
        catalog_bytes: its size.
        files: number of indexed paths.
        skipped: number of files left out, by reason.
        created: Unix time of publication, in seconds.
    """

    generation: int
    repository: str
    tokenizer: TokenizerIdentity
    marks: str
    segments: tuple[SegmentRecord, ...]
    catalog: str
    catalog_bytes: int
    files: int
    skipped: Mapping[str, int]
    created: float

    @property
    def tokens(self) -> int:
        """Live tokens of all segments."""
        return sum(segment.live_tokens for segment in self.segments)

    @property
    def size_bytes(self) -> int:
        """Size on disk of everything this generation consists of."""
        return self.catalog_bytes + sum(segment.file_bytes for segment in self.segments)

    def file_names(self) -> set[str]:
        """Names of the files that this generation needs, the manifest itself aside."""
        return {self.catalog, *(segment.file for segment in self.segments)}

    def encode(self) -> bytes:
        """The manifest file's content."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, indent=1).encode() + b"\n"

    @classmethod
    def read(cls, file: Path) -> Manifest:
        """Read a manifest file.

        Raises:
            IndexStoreError: it is missing, damaged or of another format.
        """
        try:
            content: dict[str, Any] = json.loads(file.read_bytes())
            if content.pop("format") != _FORMAT:
                raise IndexStoreError(f"{file} is not of index format {_FORMAT}; build the index again")
            content["tokenizer"] = TokenizerIdentity(**content["tokenizer"])
            content["segments"] = tuple(SegmentRecord(**segment) for segment in content["segments"])
            return cls(**content)
        except FileNotFoundError as error:
            raise IndexStoreError(f"there is no index in {file.parent}; run agentspec index first") from error
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise IndexStoreError(f"index manifest {file} is damaged ({error}); build the index again") from error
