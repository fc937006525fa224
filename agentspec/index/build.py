"""Brings the index of a repository up to date: scan, tokenise, mark, publish."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from agentspec.errors import IndexStoreError
from agentspec.index.documents import make_documents
from agentspec.index.memory import Remembered, load_memory, save_memory
from agentspec.index.rules import Reason
from agentspec.index.scan import Scanner
from agentspec.index.store import IndexStore, store_directory
from agentspec.index.syntax import SyntaxMarker, marks_version
from agentspec.index.walk import check_repository
from agentspec.index.writer import StoreWriter, open_writer

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from agentspec.index.manifest import Manifest
    from agentspec.index.scan import FileText, FoundFile
    from agentspec.index.segment import IndexedDocument
    from agentspec.index.tokenizer import IndexTokenizer


class Progress(NamedTuple):
    """How far a build is.

    Attributes:
        files_done: files looked at.
        files_total: files there are.
        bytes_done: their bytes; files that need no reading count as well.
        bytes_total: bytes of all files that are not left out at first sight.
    """

    files_done: int
    files_total: int
    bytes_done: int
    bytes_total: int


@dataclass(slots=True)
class BuildReport:
    """What a build found and did.

    Attributes:
        repository: the indexed folder, symbolic links resolved.
        store: folder of its index.
        files: paths in the index.
        new_documents: contents that had to be tokenised; in a dry run, those that would have to be.
        new_tokens: their tokens; 0 in a dry run.
        skipped: number of files left out, by reason.
        manifest: the published generation; None in a dry run.
        changed: whether a new generation was published; in a dry run, whether one would be.
        warnings: what a person should know.
        seconds: time by stage: "scan", "tokenise", "mark", "publish", and "total".
    """

    repository: Path
    store: Path
    files: int = 0
    new_documents: int = 0
    new_tokens: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    manifest: Manifest | None = None
    changed: bool = False
    warnings: list[str] = field(default_factory=list)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """How to build.

    Attributes:
        index_directory: where all stores live.
        max_file_bytes: larger files are left out.
        dry_run: read and report only; nothing is tokenised or written.
    """

    index_directory: Path
    max_file_bytes: int
    dry_run: bool = False


def build_index(
    repository: Path,
    tokenizer: IndexTokenizer,
    options: BuildOptions,
    report_progress: Callable[[Progress], None] = lambda _: None,
) -> BuildReport:
    """Bring the index of `repository` up to date for one tokenizer.

    Content that is indexed already is not read, tokenised or parsed again. What `report_progress` raises ends the
    build and leaves the published generation as it was.

    Args:
        repository: its folder.
        tokenizer: whose tokens are indexed.
        options: how to build.
        report_progress: told now and then how far it is.

    Raises:
        NotFoundError: the repository does not exist.
        InvalidRequestError: it is no folder, or git refuses to list it.
        IndexStoreError: the index cannot be written, or another process is writing it.
        ModelError: the tokenizer cannot be loaded.
    """
    began = perf_counter()
    root = check_repository(repository)
    directory = store_directory(options.index_directory, root, tokenizer.identity.fingerprint)
    report = BuildReport(root, directory)
    scanner = Scanner(root, options.max_file_bytes, load_memory(directory, options.max_file_bytes))
    content = (IndexStore(directory), tokenizer.identity, marks_version())
    with nullcontext(StoreWriter(*content)) if options.dry_run else open_writer(*content) as writer:
        if writer.damage is not None:
            report.warnings.append(f"{writer.damage}: building it from nothing")
        _Build(scanner, writer, tokenizer, options, report).run(report_progress)
    report.seconds["total"] = perf_counter() - began
    return report


class _Build:
    """One run of `build_index`."""

    def __init__(
        self,
        scanner: Scanner,
        writer: StoreWriter,
        tokenizer: IndexTokenizer,
        options: BuildOptions,
        report: BuildReport,
    ) -> None:
        self._scanner = scanner
        self._writer = writer
        self._tokenizer = tokenizer
        self._options = options
        self._report = report
        self._files: dict[bytes, bytes] = {}
        self._skipped: Counter[str] = Counter()
        self._memory: dict[bytes, Remembered] = {}
        self._remembers_more = False

    def run(self, report_progress: Callable[[Progress], None]) -> None:
        began = perf_counter()
        found = self._scanner.survey()
        self._report.seconds["scan"] += perf_counter() - began
        with closing(self._new_texts(found, report_progress)) as texts:
            if self._options.dry_run:
                documents: list[IndexedDocument] = []
                self._report.new_documents = sum(1 for _ in texts)
            else:
                marker = SyntaxMarker(self._report.warnings.append)
                documents = list(make_documents(texts, self._tokenizer, marker, self._report.seconds))
                self._report.new_documents = len(documents)
                self._report.new_tokens = sum(len(document.tokens) for document in documents)
        self._report.files = len(self._files)
        self._report.skipped = dict(sorted(self._skipped.items()))
        self._report.changed = self._writer.manifest is None or self._writer.paths() != self._files
        if not self._options.dry_run:
            self._publish(documents)

    def _new_texts(
        self, found: list[FoundFile], report_progress: Callable[[Progress], None]
    ) -> Generator[tuple[str, FileText], None, None]:
        """Judge every file; yields path and text of each content that is not indexed yet, once."""
        total = sum(file.status.size for file in found if file.status is not None)
        done = 0
        queued: set[bytes] = set()
        for number, file in enumerate(found):
            text = self._judge(file)
            if text is not None and text.blob not in queued:
                queued.add(text.blob)
                yield os.fsdecode(file.path), text
            done += file.status.size if file.status is not None else 0
            report_progress(Progress(number + 1, len(found), done, total))

    def _judge(self, file: FoundFile) -> FileText | None:
        """Count a file in or out; its text when its content is not indexed yet."""
        verdict: bytes | Reason
        text = None
        if isinstance(file.verdict, Reason) or (file.verdict is not None and self._writer.knows(file.verdict)):
            verdict = file.verdict
        else:
            self._remembers_more = True
            content = self._scanner.read(file.path)
            if isinstance(content, Reason):
                verdict = content
            else:
                verdict = content.blob
                text = None if self._writer.knows(content.blob) else content
        if file.status is not None:
            self._memory[file.path] = Remembered(file.status, verdict)
        if isinstance(verdict, Reason):
            self._skipped[verdict.value] += 1
        else:
            self._files[file.path] = verdict
        return text

    def _publish(self, documents: list[IndexedDocument]) -> None:
        began = perf_counter()
        if self._report.changed:
            self._writer.publish(self._report.repository, self._files, documents, self._skipped)
        self._report.manifest = self._writer.manifest
        if self._remembers_more:
            try:
                settled = self._scanner.worth_remembering(self._memory)
                save_memory(self._report.store, self._options.max_file_bytes, settled)
            except IndexStoreError as error:
                self._report.warnings.append(f"the next run will read every file again: {error}")
        self._report.seconds["publish"] += perf_counter() - began
