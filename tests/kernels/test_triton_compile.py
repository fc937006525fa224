"""Our Triton kernels compile for GPUs, in processes without Triton's interpreter; the compiler's cache is kept.

The interpreter takes more than the compiler does: annotations, mixed types, Python's own functions.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.sglang

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize("capability", ["80", "90"])
def test_every_kernel_compiles(capability):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.kernels.triton_compile", capability]
    run = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.endswith(" kernels\n")
