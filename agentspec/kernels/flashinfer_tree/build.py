"""Ahead-of-time build of the variant for the GPUs of a deployment; no GPU is needed.

What is built is what FlashInfer would compile at first use, in the cache where it looks for it, so a server started
afterwards finds it. FlashInfer reads the architecture from its environment when it is imported, and keeps a cache
folder for each; so every architecture is built in a process of its own (`compiler`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal

from agentspec.errors import AgentspecError

if TYPE_CHECKING:
    from agentspec.kernels.flashinfer_tree.variant import TreeVariant

Extent = Literal["library", "verify"]
"""The loadable library, or only the object with the kernels that verify trees (to check that they compile)."""

COMPILER = "agentspec.kernels.flashinfer_tree.compiler"

_SHOWN_LINES = 40
_TOOLKITS = ("/usr/local/cuda", "/opt/cuda")


class KernelBuildError(AgentspecError):
    """A kernel could not be built; the message holds the end of the compiler's output."""

    code = "kernel_build_failed"


def build(variant: TreeVariant, architecture: str, extent: Extent = "library", jobs: int = 1) -> list[Path]:
    """Compile a variant for one architecture; what is up to date is left as it is.

    Args:
        variant: which form.
        architecture: compute capability, such as `8.0` or `9.0a`.
        extent: how much of it.
        jobs: compilers at once; each takes one core and up to 3 GB.

    Returns:
        The built files.

    Raises:
        KernelBuildError: flashinfer or nvcc is missing, or the compiler refused.
    """
    if find_spec("flashinfer") is None:
        raise KernelBuildError(
            "flashinfer is not installed beside agentspec; install agentspec[sglang], or flashinfer-python>=0.7.2"
        )
    order = {"jit_args": [_plain(one) for one in variant.jit_args()], "jit_kwargs": variant.jit_kwargs()}
    with TemporaryDirectory() as stubs:
        environment = os.environ | {
            "CUDA_HOME": str(cuda_toolkit()),
            "FLASHINFER_CUDA_ARCH_LIST": architecture,
            "FLASHINFER_EXTRA_LDFLAGS": f"{os.environ.get('FLASHINFER_EXTRA_LDFLAGS', '')} -L{stubs}".strip(),
            "MAX_JOBS": str(jobs),
        }
        if extent == "library":
            _stub_driver(Path(stubs))
        result = subprocess.run(
            [sys.executable, "-m", COMPILER, extent],
            input=json.dumps(order),
            text=True,
            capture_output=True,
            env=environment,
            check=False,
        )
    if result.returncode != 0:
        output = (result.stdout + result.stderr).splitlines()[-_SHOWN_LINES:]
        raise KernelBuildError("\n".join([f"{variant.name} does not build for {architecture}:", *output]))
    return [Path(line) for line in json.loads(result.stdout.splitlines()[-1])]


def cuda_toolkit() -> Path:
    """The CUDA toolkit to build with: the one named in the environment, the system's, or that of the pip packages.

    Raises:
        KernelBuildError: there is none.
    """
    named = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    packaged = [root / "cu13" for root in _package_roots("nvidia")]
    found = shutil.which("nvcc")
    candidates = [Path(named)] if named else [*map(Path, _TOOLKITS), *packaged]
    if found and not named:
        candidates.append(Path(found).resolve().parent.parent)
    for home in candidates:
        if (home / "bin" / "nvcc").exists():
            return home
    raise KernelBuildError(
        f"no CUDA compiler in {', '.join(map(str, candidates))}; install the toolkit (or pip's nvidia-cuda-nvcc) "
        "and set CUDA_HOME"
    )


def _package_roots(package: str) -> list[Path]:
    spec = find_spec(package)
    return [] if spec is None else [Path(root) for root in spec.submodule_search_locations or ()]


def _stub_driver(folder: Path) -> None:
    """Put an empty `libcuda.so` into `folder`: the linker asks for the driver's library, which only a GPU's host has.

    It bears the name that the loader resolves at run time, and is searched after every real one.
    """
    command = [os.environ.get("CXX", "c++"), "-shared", "-Wl,-soname,libcuda.so.1", "-x", "c++", "/dev/null"]
    result = subprocess.run([*command, "-o", str(folder / "libcuda.so")], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise KernelBuildError(f"the C++ compiler does not link:\n{result.stderr}")


def _plain(argument: object) -> object:
    """An argument of the generator as JSON holds it; `compiler` turns the names of element types back."""
    text = str(argument)
    return {"dtype": text.removeprefix("torch.")} if text.startswith("torch.") else argument
