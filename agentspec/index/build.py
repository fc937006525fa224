"""Brings the index of a repository up to date: scan, tokenise, mark, publish."""

from __future__ import annotations

from collections import defaultdict
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from agentspec.errors import IndexStoreError
from agentspec.index.census import Census, Progress
from agentspec.index.documents import make_documents
from agentspec.index.memory import load_memory, save_memory
from agentspec.index.scan import Scanner
from agentspec.index.store import IndexStore, store_directory
from agentspec.index.syntax import SyntaxMarker, marks_version
from agentspec.index.walk import check_repository
from agentspec.index.writer import StoreWriter, open_writer

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentspec.index.manifest import Manifest
    from agentspec.index.segment import IndexedDocument
    from agentspec.index.tokenizer import IndexTokenizer


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
        manifest: the generation that is published now, if there is one.
        changed: whether this build published it; in a dry run, whether a build would publish one.
        warnings: what a person should know.
        seconds: time spent in "tokenise", "mark" (beside it, on another thread), "publish", and "total".
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
        dry_run: read and report only; nothing is tokenised or published.
        rebuild: use nothing of the present index.
    """

    index_directory: Path
    max_file_bytes: int
    dry_run: bool = False
    rebuild: bool = False


def build_index(
    repository: Path,
    tokenizer: IndexTokenizer,
    options: BuildOptions,
    report_progress: Callable[[Progress], None] = lambda _: None,
) -> BuildReport:
    """Bring the index of `repository` up to date for one tokenizer.

    Content that is indexed already is not tokenised or parsed again, and not even read where the file system says that
    it did not change. What `report_progress` raises ends the build and leaves the published generation as it was.

    Args:
        repository: its folder.
        tokenizer: whose tokens are indexed.
        options: how to build.
        report_progress: told after every file how far it is.

    Raises:
        NotFoundError: the repository does not exist.
        InvalidRequestError: it is no folder, or git refuses to list it.
        IndexStoreError: the index cannot be written, or another process is writing it.
        ModelError: the tokenizer cannot be loaded.
    """
    began = perf_counter()
    root = check_repository(repository)
    report = BuildReport(root, store_directory(options.index_directory, root, tokenizer.identity.fingerprint))
    target = (IndexStore(report.store), tokenizer.identity, marks_version(), not options.rebuild)
    with nullcontext(StoreWriter(*target)) if options.dry_run else open_writer(*target) as writer:
        if writer.damage is not None:
            report.warnings.append(f"{writer.damage}: building it from nothing")
        census = _census(root, writer, report.store, options.max_file_bytes)
        documents: list[IndexedDocument] = []
        with closing(census.new_texts(report_progress)) as texts:
            if options.dry_run:
                report.new_documents = sum(1 for _ in texts)
            else:
                marker = SyntaxMarker(report.warnings.append)
                documents = list(make_documents(texts, tokenizer, marker, report.seconds))
                report.new_documents = len(documents)
                report.new_tokens = sum(len(document.tokens) for document in documents)
        report.files = len(census.files)
        report.skipped = dict(sorted(census.skipped.items()))
        report.changed = writer.is_outdated(census.files)
        if not options.dry_run:
            _publish(writer, census, documents, report)
            _remember(census, report, options.max_file_bytes)
        report.manifest = writer.manifest
    report.seconds["total"] = perf_counter() - began
    return report


def is_stale(store: IndexStore, max_file_bytes: int) -> bool:
    """Whether the repository has changed since its index was published. Reads only files that may have changed.

    Args:
        store: its index.
        max_file_bytes: larger files are left out.

    Raises:
        NotFoundError: the repository does not exist any more.
        InvalidRequestError: it is no folder, or git refuses to list it.
        IndexStoreError: nothing was published, or the manifest is damaged.
    """
    manifest = store.manifest()
    root = check_repository(Path(manifest.repository))
    writer = StoreWriter(store, manifest.tokenizer, marks_version())
    census = _census(root, writer, store.directory, max_file_bytes)
    any_new = any(True for _ in census.new_texts(lambda _: None))
    return any_new or writer.is_outdated(census.files)


def _census(root: Path, writer: StoreWriter, directory: Path, max_file_bytes: int) -> Census:
    return Census(Scanner(root, max_file_bytes, load_memory(directory, max_file_bytes)), writer.knows)


def _publish(writer: StoreWriter, census: Census, documents: list[IndexedDocument], report: BuildReport) -> None:
    began = perf_counter()
    if report.changed:
        writer.publish(report.repository, census.files, documents, report.skipped)
    report.seconds["publish"] = perf_counter() - began


def _remember(census: Census, report: BuildReport, max_file_bytes: int) -> None:
    if not census.read_any:
        return
    try:
        save_memory(report.store, max_file_bytes, census.memory())
    except IndexStoreError as error:
        report.warnings.append(f"the next run will read every file again: {error}")
