"""A real index over a trace's documents, so that drafters read the repository as they do in service."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from agentspec.index.manifest import TokenizerIdentity
from agentspec.index.segment import IndexedDocument
from agentspec.index.store import IndexStore
from agentspec.index.writer import open_writer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agentspec.benchmarking.traces import Document
    from agentspec.index.snapshot import Snapshot

_NO_MARKS = "none"
"""Token streams carry no syntax, so the index is built without marks."""


@contextmanager
def indexed(documents: Sequence[Document], vocabulary_size: int) -> Iterator[Snapshot]:
    """Index documents in a temporary folder, which goes when the context ends.

    Args:
        documents: of one repository; of several with one path, the last counts.
        vocabulary_size: all tokens are below it.
    """
    blobs = {document.path.encode(): _blob(document) for document in documents}
    contents = {
        _blob(document): IndexedDocument(_blob(document), document.tokens, np.zeros(len(document.tokens), np.bool_))
        for document in documents
    }
    with TemporaryDirectory(prefix="agentspec-replay-") as folder:
        store = IndexStore(Path(folder))
        identity = TokenizerIdentity(name="traces", fingerprint="traces", vocabulary_size=vocabulary_size)
        with open_writer(store, identity, _NO_MARKS) as writer:
            writer.publish(Path(folder), blobs, list(contents.values()), skipped={})
        yield store.current()


def _blob(document: Document) -> bytes:
    return hashlib.sha1(document.tokens.tobytes(), usedforsecurity=False).digest()
