"""The engine that the settings ask for, and no other, is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys
from pathlib import Path
from agentspec.config import Settings
from agentspec.engines.factory import create_engine

engine = create_engine(Settings.load(engine={{"kind": "{kind}"}}), Path("model"), repositories=None)
print(type(engine).__name__, *(name for name in sys.modules if name.startswith("agentspec.engines.")))
"""


@pytest.mark.parametrize(
    ("kind", "engine", "other"), [("local", "LocalEngine", "sglang"), ("sglang", "SGLangEngine", "local")]
)
def test_one_engine_is_made_and_the_other_left_alone(kind: str, engine: str, other: str) -> None:
    command = [sys.executable, "-c", SCRIPT.format(kind=kind)]
    name, *modules = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert name == engine
    assert f"agentspec.engines.{kind}.engine" in modules
    assert f"agentspec.engines.{other}.engine" not in modules
