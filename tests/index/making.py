"""Documents and generations made of numbers, for tests that need no files."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from agentspec.index.manifest import TokenizerIdentity
from agentspec.index.segment import DefinitionKind, DefinitionMark, IndexedDocument
from agentspec.index.store import IndexStore
from agentspec.index.writer import open_writer

if TYPE_CHECKING:
    from agentspec.index.snapshot import Snapshot

IDENTITY = TokenizerIdentity("numbers", "fingerprint-of-numbers", 1000)


def document(tokens: list[int], *definitions: DefinitionMark, identifiers: list[int] | None = None) -> IndexedDocument:
    array = np.array(tokens, np.int32)
    marked = np.zeros(len(array), np.bool_)
    marked[identifiers or []] = True
    return IndexedDocument(hashlib.sha1(array.tobytes()).digest(), array, marked, definitions)


def random_document(generator: np.random.Generator, length: int) -> IndexedDocument:
    tokens = generator.integers(0, IDENTITY.vocabulary_size, length).tolist()
    marked = np.flatnonzero(generator.integers(0, 2, length)).tolist()
    return document(tokens, DefinitionMark("name", DefinitionKind.CLASS, 0, length), identifiers=marked)


def publish(directory: Path, files: dict[str, IndexedDocument], identity: TokenizerIdentity = IDENTITY) -> Snapshot:
    """Publish a generation of exactly these files; documents that are known are not given again."""
    store = IndexStore(directory)
    with open_writer(store, identity, marks="test") as writer:
        new = [content for content in files.values() if not writer.knows(content.blob)]
        blobs = {path.encode(errors="surrogateescape"): content.blob for path, content in files.items()}
        writer.publish(Path("/project"), blobs, new, {})
    return store.current()


def contents(snapshot: Snapshot) -> dict[str, list[int]]:
    return {found.path: snapshot.tokens(found).tolist() for found in snapshot.documents()}
