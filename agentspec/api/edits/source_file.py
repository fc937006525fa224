"""The file that an edit starts from, as the model sees it and as the client has it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from agentspec.api.edits.lines import split_lines, uses_crlf, with_crlf, with_line_feeds

_BACKTICKS = re.compile(r"^\s*(`{3,})", re.MULTILINE)
_SHORTEST_FENCE = 3


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A text with line feeds alone, and how its owner ends lines.

    Attributes:
        path: what it is called; empty where nobody knows.
        text: its content.
        crlf: whether its lines end with a carriage return too.
    """

    path: str
    text: str
    crlf: bool = False

    @classmethod
    def of(cls, path: str, content: str) -> Self:
        """The file whose content is `content`."""
        return cls(path, with_line_feeds(content), crlf=True) if uses_crlf(content) else cls(path, content)

    def restored(self, text: str) -> str:
        """A new text with the line ends of this file."""
        return with_crlf(text) if self.crlf else text

    def lines(self) -> list[str]:
        """Its lines with their ends."""
        return split_lines(self.text)

    def fence(self) -> str:
        """Backticks that can enclose the text: more than any of its lines begins with."""
        longest = max((len(run) for run in _BACKTICKS.findall(self.text)), default=_SHORTEST_FENCE - 1)
        return "`" * max(_SHORTEST_FENCE, longest + 1)
