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

SYSTEM_TOOLKIT = "/usr/local/cuda"
"""Where FlashInfer looks when no variable and no `nvcc` on the path says otherwise."""

_SHOWN_LINES = 40


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
    with TemporaryDirectory() as fallbacks:
        if extent == "library":
            _link_fallbacks(Path(fallbacks))
        libraries = [fallbacks, os.environ.get("LIBRARY_PATH", "")]
        environment = {
            **os.environ,
            **compiler_environment(),
            "FLASHINFER_CUDA_ARCH_LIST": architecture,
            # Not a linker flag: FlashInfer builds again whatever was built by another command than its own.
            "LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
            "MAX_JOBS": str(jobs),
        }
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


def compiler_environment() -> dict[str, str]:
    """What FlashInfer must be told to find a CUDA compiler: nothing where it finds one by itself.

    Otherwise it is the compiler of the pip packages. A server then needs the same variable, or it builds again.

    Raises:
        KernelBuildError: there is no compiler.
    """
    named = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if named:
        if not (Path(named) / "bin" / "nvcc").exists():
            raise KernelBuildError(f"CUDA_HOME names {named}, where there is no bin/nvcc; correct or unset it")
        return {}
    if shutil.which("nvcc") or (Path(SYSTEM_TOOLKIT) / "bin" / "nvcc").exists():
        return {}
    for home in _packaged_toolkits():
        if (home / "bin" / "nvcc").exists():
            return {"CUDA_HOME": str(home)}
    raise KernelBuildError("no CUDA compiler; install the CUDA toolkit, or pip's nvidia-cuda-nvcc beside agentspec")


def _packaged_toolkits() -> list[Path]:
    """Toolkits among the installed packages, newest first."""
    spec = find_spec("nvidia")
    roots = [] if spec is None else list(spec.submodule_search_locations or ())
    return sorted((home for root in roots for home in Path(root).glob("cu[0-9]*")), reverse=True)


def _link_fallbacks(folder: Path) -> None:
    """Put into `folder` what the linker asks for by name and may not find: the driver's library and the runtime's.

    The driver's is an empty one under the name that is resolved when the kernel is loaded, on the GPU's own host.
    """
    command = [os.environ.get("CXX", "c++"), "-shared", "-Wl,-soname,libcuda.so.1", "-x", "c++", os.devnull]
    result = subprocess.run([*command, "-o", str(folder / "libcuda.so")], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise KernelBuildError(f"the C++ compiler does not link:\n{result.stderr}")
    places = [Path(SYSTEM_TOOLKIT) / "lib64", *(home / "lib" for home in _packaged_toolkits())]
    runtimes = [file for place in places for file in sorted(place.glob("libcudart.so*"))]
    if runtimes:
        (folder / "libcudart.so").symlink_to(runtimes[0])


def _plain(argument: object) -> object:
    """An argument of the generator as JSON holds it; `compiler` turns the names of element types back."""
    text = str(argument)
    return {"dtype": text.removeprefix("torch.")} if text.startswith("torch.") else argument
