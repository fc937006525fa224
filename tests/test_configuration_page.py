"""docs/configuration.md lists the settings as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from agentspec.config import Settings

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "docs" / "configuration_table.py"


def test_the_page_is_current() -> None:
    result = subprocess.run([sys.executable, SCRIPT, "--check"], check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_an_outdated_page_is_noticed(tmp_path: Path) -> None:
    (tmp_path / SCRIPT.name).write_text(SCRIPT.read_text())
    page = (ROOT / "docs" / "configuration.md").read_text()
    (tmp_path / "configuration.md").write_text(page.replace("`8642`", "`80`"))
    command = [sys.executable, tmp_path / SCRIPT.name]
    assert subprocess.run([*command, "--check"], check=False, capture_output=True).returncode == 1
    subprocess.run(command, check=True)
    assert (tmp_path / "configuration.md").read_text() == page


@pytest.mark.parametrize("file", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda file: file.name)
def test_every_shipped_file_fits(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENTSPEC_CONFIG", raising=False)
    settings = Settings.load(file).model_dump()
    for section, values in yaml.safe_load(file.read_text()).items():
        assert set(values) <= set(settings[section])
