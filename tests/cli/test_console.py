"""Where the CLI writes."""

import pytest
from rich.table import Table

from agentspec.cli.console import output


def test_tables_that_go_to_a_file_are_not_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    table = Table(box=None)
    for _ in range(6):
        table.add_column("x" * 16)
    output().print(table)
    assert capsys.readouterr().out.count("x" * 16) == 6


def test_columns_of_the_environment_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    assert output().width == 90
