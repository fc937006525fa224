"""Triton kernels against what they must equal, in processes of their own for Triton's interpreter.

The CPU stand-ins are compared with SGLang's kernels, and our device path with the host path.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.sglang

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.parametrize("script", ["triton_oracle", "device_oracle"])
def test_both_sides_are_equal(script: str) -> None:
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "SGLANG_USE_CPU_ENGINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "TORCHDYNAMO_DISABLE": "1",
    }
    command = [sys.executable, "-m", f"tests.engines.sglang.{script}"]
    run = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.strip().endswith("all equal")
