"""Turns texts into documents for a segment: the tokenizer and the parsers side by side."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import TYPE_CHECKING

from agentspec.index.segment import IndexedDocument

if TYPE_CHECKING:
    from collections import defaultdict
    from collections.abc import Iterable, Iterator
    from concurrent.futures import Future

    from agentspec.index.scan import FileText
    from agentspec.index.syntax import SyntaxMarker
    from agentspec.index.tokenizer import IndexTokenizer, TokenizedText

_BATCH_CHARACTERS = 1_000_000
"""Text handed to the tokenizer at once; enough to keep its threads busy."""

_BATCHES_AHEAD = 1
"""Batches that are tokenised while an earlier one is parsed."""

_Batch = list[tuple[str, "FileText"]]


def make_documents(
    texts: Iterable[tuple[str, FileText]],
    tokenizer: IndexTokenizer,
    marker: SyntaxMarker,
    seconds: defaultdict[str, float],
) -> Iterator[IndexedDocument]:
    """Tokenise and mark texts, in their order. A text without tokens makes a document without tokens.

    Args:
        texts: path and content; taken as fast as they are worked off.
        tokenizer: tokenises on a thread of its own.
        marker: parses on the caller's.
        seconds: told the time spent in "tokenise" and in "mark".

    Raises:
        ModelError: the tokenizer cannot be loaded.
    """

    def tokenise(batch: _Batch) -> list[TokenizedText]:
        began = perf_counter()
        tokenised = tokenizer.tokenize([content.text for _, content in batch])
        seconds["tokenise"] += perf_counter() - began
        return tokenised

    def mark(batch: _Batch, tokenised: list[TokenizedText]) -> Iterator[IndexedDocument]:
        began = perf_counter()
        for (path, content), tokens in zip(batch, tokenised, strict=True):
            marks = marker.mark(path, content.text, tokens)
            yield IndexedDocument(content.blob, tokens.tokens, marks.identifiers, marks.definitions)
        seconds["mark"] += perf_counter() - began

    with ThreadPoolExecutor(max_workers=1) as executor:
        running: deque[tuple[_Batch, Future[list[TokenizedText]]]] = deque()
        for batch in _batches(texts):
            running.append((batch, executor.submit(tokenise, batch)))
            if len(running) > _BATCHES_AHEAD:
                ready, tokenised = running.popleft()
                yield from mark(ready, tokenised.result())
        for ready, tokenised in running:
            yield from mark(ready, tokenised.result())


def _batches(texts: Iterable[tuple[str, FileText]]) -> Iterator[_Batch]:
    batch: _Batch = []
    characters = 0
    for path, content in texts:
        batch.append((path, content))
        characters += len(content.text)
        if characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
