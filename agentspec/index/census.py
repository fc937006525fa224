"""Judges every file of a repository: in the index, new to it, or left out."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from agentspec.index.memory import Remembered
from agentspec.index.rules import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from agentspec.index.scan import FileText, FoundFile, Scanner


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


class Census:
    """The files of one repository at one moment.

    Args:
        scanner: looks at the repository.
        knows: whether content with this blob id is indexed already.
    """

    files: dict[bytes, bytes]
    """Blob id by path of the files that belong into the index, as far as `new_texts` has come."""

    skipped: Counter[str]
    """Number of files left out so far, by reason."""

    read_any: bool
    """Whether a file had to be read, since no memory or an outdated one spoke of it."""

    def __init__(self, scanner: Scanner, knows: Callable[[bytes], bool]) -> None:
        self._scanner = scanner
        self._knows = knows
        self._memory: dict[bytes, Remembered] = {}
        self.files = {}
        self.skipped = Counter()
        self.read_any = False

    def new_texts(self, report_progress: Callable[[Progress], None]) -> Generator[tuple[str, FileText], None, None]:
        """Judge every file; yields path and text of each content that is not indexed yet, once.

        Raises:
            InvalidRequestError: git refuses to list the files.
        """
        found = self._scanner.survey()
        total = sum(file.status.size for file in found if file.status is not None)
        done = 0
        yielded: set[bytes] = set()
        for number, file in enumerate(found):
            text = self._judge(file)
            if text is not None and text.blob not in yielded:
                yielded.add(text.blob)
                yield os.fsdecode(file.path), text
            done += file.status.size if file.status is not None else 0
            report_progress(Progress(number + 1, len(found), done, total))

    def memory(self) -> dict[bytes, Remembered]:
        """What later runs may take for granted."""
        return self._scanner.worth_remembering(self._memory)

    def _judge(self, file: FoundFile) -> FileText | None:
        """Count a file in or out; its text when its content is not indexed yet."""
        verdict = file.verdict
        text = None
        if verdict is None or (isinstance(verdict, bytes) and not self._knows(verdict)):
            self.read_any = True
            content = self._scanner.read(file.path)
            if isinstance(content, Reason):
                verdict = content
            else:
                verdict = content.blob
                text = None if self._knows(content.blob) else content
        if file.status is not None:
            self._memory[file.path] = Remembered(file.status, verdict)
        if isinstance(verdict, Reason):
            self.skipped[verdict.value] += 1
        else:
            self.files[file.path] = verdict
        return text
