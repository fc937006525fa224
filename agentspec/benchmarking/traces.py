"""Traces: recorded edits as token streams, and the file that holds them.

A trace file is a compressed `.npz`: every token stream laid end to end in `tokens`, the length of each in `lengths`,
and `manifest`, UTF-8 JSON that says which stream is what. Documents that several traces share are stored once.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from agentspec.benchmarking.formats import FORMATS
from agentspec.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from agentspec.benchmarking.git_history import Edit, SourceFile
    from agentspec.drafters.base import TextCodec

_FILE_FORMAT = "agentspec-traces-1"


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """A repository file as tokens.

    Attributes:
        path: relative to the repository's root.
        tokens: `int32[L]`, the file tokenised whole.
    """

    path: str
    tokens: NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """One recorded generation.

    Attributes:
        id: names it in reports, e.g. `1f0c9a2:src/app.py:unified-diff`.
        format: key of `agentspec.benchmarking.formats.FORMATS`.
        path: the edited file.
        prompt: `int32[P]`.
        output: `int32[M]`, what the target said.
        documents: the repository before the edit, the edited file last.
    """

    id: str
    format: str
    path: str
    prompt: NDArray[np.int32]
    output: NDArray[np.int32]
    documents: tuple[Document, ...]


@dataclass(frozen=True, slots=True)
class TraceSet:
    """Traces made with one tokenizer.

    Attributes:
        traces: in the order in which they were recorded.
        tokenizer: its fingerprint, see `agentspec.benchmarking.codec.FileCodec`.
    """

    traces: tuple[Trace, ...]
    tokenizer: str


def build_traces(edits: Iterable[Edit], codec: TextCodec, formats: Sequence[str], max_tokens: int) -> tuple[Trace, ...]:
    """Render and tokenise edits in each of the formats.

    Args:
        edits: what to render.
        codec: the tokenizer of the model whose drafting is measured.
        formats: keys of `FORMATS`.
        max_tokens: prompts or outputs that are longer are left out.

    Raises:
        InvalidRequestError: a format is unknown.
    """
    unknown = [name for name in formats if name not in FORMATS]
    if unknown:
        raise InvalidRequestError(f"unknown edit format {unknown[0]!r}; known are {', '.join(FORMATS)}")
    documents: dict[tuple[str, str], Document] = {}

    def document(file: SourceFile) -> Document:
        key = (file.path, file.blob)
        if key not in documents:
            documents[key] = Document(file.path, _tokens(codec, file.text))
        return documents[key]

    traces = []
    for edit in edits:
        repository = tuple(document(file) for file in (*edit.siblings, edit.before))
        for name in formats:
            exchange = FORMATS[name](edit)
            prompt, output = _tokens(codec, exchange.prompt), _tokens(codec, exchange.output)
            if max(len(prompt), len(output)) <= max_tokens:
                identity = f"{edit.commit[:10]}:{edit.before.path}:{name}"
                traces.append(Trace(identity, name, edit.before.path, prompt, output, repository))
    return tuple(traces)


def _tokens(codec: TextCodec, text: str) -> NDArray[np.int32]:
    return np.asarray(codec.encode(text), np.int32)


def save_traces(file: Path, recorded: TraceSet) -> None:
    """Write a trace file; an existing one is replaced."""
    streams: list[NDArray[np.int32]] = []
    numbers: dict[int, int] = {}
    documents: list[dict[str, Any]] = []

    def add(tokens: NDArray[np.int32]) -> int:
        streams.append(tokens)
        return len(streams) - 1

    def document_number(document: Document) -> int:
        if id(document) not in numbers:
            numbers[id(document)] = len(documents)
            documents.append({"path": document.path, "stream": add(document.tokens)})
        return numbers[id(document)]

    entries = [
        {
            "id": trace.id,
            "format": trace.format,
            "path": trace.path,
            "prompt": add(trace.prompt),
            "output": add(trace.output),
            "documents": [document_number(document) for document in trace.documents],
        }
        for trace in recorded.traces
    ]
    manifest = json.dumps(
        {"format": _FILE_FORMAT, "tokenizer": recorded.tokenizer, "documents": documents, "traces": entries}
    )
    with file.open("wb") as target:
        np.savez_compressed(
            target,
            tokens=np.concatenate([np.empty(0, np.int32), *streams]),
            lengths=np.array([len(stream) for stream in streams], np.int64),
            manifest=np.frombuffer(manifest.encode(), np.uint8),
        )


def load_traces(file: Path) -> TraceSet:
    """Read a trace file.

    Raises:
        InvalidRequestError: the file is missing or is no trace file.
    """
    try:
        with np.load(file, allow_pickle=False) as content:
            tokens, lengths = content["tokens"], content["lengths"]
            manifest = json.loads(content["manifest"].tobytes())
        if manifest["format"] != _FILE_FORMAT:
            raise InvalidRequestError(f"{file} holds traces of format {manifest['format']!r}, not {_FILE_FORMAT!r}")
        streams = np.split(tokens.astype(np.int32, copy=False), np.cumsum(lengths))
        documents = [Document(entry["path"], streams[entry["stream"]]) for entry in manifest["documents"]]
        traces = tuple(
            Trace(
                id=entry["id"],
                format=entry["format"],
                path=entry["path"],
                prompt=streams[entry["prompt"]],
                output=streams[entry["output"]],
                documents=tuple(documents[number] for number in entry["documents"]),
            )
            for entry in manifest["traces"]
        )
        return TraceSet(traces, manifest["tokenizer"])
    except FileNotFoundError as error:
        raise InvalidRequestError(f"trace file {file} does not exist") from error
    except (OSError, EOFError, ValueError, KeyError, IndexError, TypeError, zlib.error, zipfile.BadZipFile) as error:
        raise InvalidRequestError(
            f"{file} is not a trace file made by 'agentspec bench replay --save': {error}"
        ) from error
