"""The table of clients in docs/clients.md, from what a run saw."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

BEGIN, END = "<!-- matrix: begin -->", "<!-- matrix: end -->"
RESULTS = {"passed": "works", "failed": "**fails**", "skipped": "not run"}


@dataclass(frozen=True)
class Row:
    """What one test says of one client.

    Attributes:
        client: its name.
        uses: the endpoints that it asks.
        task: what it did.
    """

    client: str
    uses: str
    task: str


@dataclass
class Matrix:
    """Rows with versions and outcomes, in the order of the tests."""

    outcomes: dict[Row, tuple[str, str]] = field(default_factory=dict)

    def add(self, row: Row, version: str, outcome: str, reason: str) -> None:
        """Note how one test went."""
        result = RESULTS[outcome] + (f" ({reason})" if reason else "")
        self.outcomes[row] = (version, result)

    def table(self) -> str:
        """The table in Markdown, with the day and the machine."""
        lines = [
            f"Run on {datetime.now(UTC):%Y-%m-%d}, {platform.system()} {platform.machine()}, "
            f"Python {platform.python_version()}.",
            "",
            "| client | version | endpoints | what it did | result |",
            "|---|---|---|---|---|",
        ]
        for row, (version, result) in self.outcomes.items():
            lines.append(f"| {row.client} | {version} | {row.uses} | {row.task} | {result} |")
        return "\n".join(lines)

    def write(self, document: Path) -> None:
        """Put the table between the markers of `document`."""
        before, _, rest = document.read_text().partition(BEGIN)
        _, _, after = rest.partition(END)
        document.write_text(f"{before}{BEGIN}\n{self.table()}\n{END}{after}")
