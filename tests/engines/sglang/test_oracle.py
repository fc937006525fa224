"""The CPU stand-ins against SGLang's own Triton kernels, in a process of its own for Triton's interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.sglang


def test_stand_ins_equal_triton_kernels() -> None:
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "SGLANG_USE_CPU_ENGINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "TORCHDYNAMO_DISABLE": "1",
    }
    script = Path(__file__).with_name("triton_oracle.py")
    run = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.strip().endswith("all equal")
