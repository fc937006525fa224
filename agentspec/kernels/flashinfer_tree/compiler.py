"""The process that compiles one variant for one architecture; see `build`.

Reads the generator's arguments as JSON from stdin, and writes the built files as JSON, the last line of stdout.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import torch
from filelock import FileLock
from flashinfer.jit.attention.modules import gen_customize_batch_prefill_module

VERIFY_KERNELS = "batch_prefill_paged_kernel_mask_2"
"""Part of the name of FlashInfer's object with the kernels of `MaskMode::kCustom`, which verify trees."""


def main(extent: str) -> list[str]:
    """Compile as ordered on stdin.

    Args:
        extent: see `build.Extent`.

    Returns:
        The built files.
    """
    order = json.load(sys.stdin)
    jit_args = [_revived(one) for one in order["jit_args"]]
    spec = gen_customize_batch_prefill_module("fa2", *jit_args, **order["jit_kwargs"])
    with FileLock(spec.lock_path):
        if extent == "library":
            spec.build(verbose=False)
            return [str(spec.jit_library_path)]
        spec.write_ninja()
        objects = [target for target in _targets(spec.ninja_path) if VERIFY_KERNELS in target]
        command = ["ninja", "-f", str(spec.ninja_path), "-j", os.environ["MAX_JOBS"], *objects]
        subprocess.run(command, cwd=spec.build_dir, check=True, stdout=sys.stderr)
        return objects


def _targets(ninja_file: Any) -> list[str]:
    """What a ninja file builds, in its order."""
    lines = ninja_file.read_text().splitlines()
    return [line.removeprefix("build ").split(":", 1)[0] for line in lines if line.startswith("build ")]


def _revived(argument: Any) -> Any:
    return getattr(torch, argument["dtype"]) if isinstance(argument, dict) else argument


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
