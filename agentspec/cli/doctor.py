"""`agentspec doctor`: what this machine has, what is missing, and how to get it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from agentspec.cli.console import output, print_json
from agentspec.cli.machine import cpu_flags, cpu_name
from agentspec.cli.options import ConfigOption, JsonOption, ModelOption, load_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentspec.config import Settings

Status = Literal["ok", "warn", "fail"]

MIN_MEMORY_BYTES = 2 * 2**30
"""Below this the embedded model, its KV and torch do not fit comfortably."""
CPU_FEATURES = ("amx_bf16", "avx512_bf16", "avx512f", "avx2", "bf16", "asimd")
"""Instruction sets that decide how fast a step is on a CPU, best first; names as Linux spells them."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at.

    Attributes:
        name: what it is.
        status: "fail" when agentspec cannot do its main job without it; "warn" when something is missing or slow.
        detail: what was found.
        hint: what to do about it; empty when all is well.
    """

    name: str
    status: Status
    detail: str
    hint: str = ""


def doctor(config: ConfigOption = None, model: ModelOption = None, json: JsonOption = False) -> None:
    """Check this machine: Python, compiler, torch, CPU, memory, GPU, grammars, folders, model.

    Exits with 1 when something fails that the main job needs, else with 0.
    """
    settings = load_settings(config, engine={"model": model})
    checks = list(run_checks(settings))
    if json:
        print_json([asdict(check) for check in checks])
    else:
        _print_table(checks)
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(1)


def run_checks(settings: Settings) -> Iterator[Check]:
    """Every check, in the order in which a newcomer meets the thing."""
    yield python_version()
    yield compiler()
    yield git()
    yield native_core()
    yield from torch_and_devices()
    yield cpu()
    yield memory()
    yield grammars()
    yield writable("index folder", settings.index.directory)
    yield writable("cache folder", settings.cache_directory)
    yield model_present(settings)
    yield sglang(settings)


def python_version() -> Check:
    """Python itself; agentspec does not install on one that is too old."""
    return Check("Python", "ok", f"{platform.python_version()} at {sys.executable}")


def compiler() -> Check:
    """The C++ compiler that builds the native core; needed to install, not to run."""
    command = os.environ.get("CXX", "c++")
    path = shutil.which(command)
    if path is None:
        hint = "Debian/Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++; macOS: xcode-select --install"
        return Check("C++ compiler", "warn", f"no {command}; needed to build the native core again", hint)
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    return Check("C++ compiler", "ok", version.splitlines()[0] if version else path)


def git() -> Check:
    """The git that lists a repository's files."""
    path = shutil.which("git")
    if path is None:
        return Check("git", "warn", "not found; folders are walked by .gitignore rules instead", "install git")
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    return Check("git", "ok", version)


def native_core() -> Check:
    """The compiled modules."""
    for module in ("agentspec.index._native", "agentspec.drafters._native", "agentspec.kernels._native"):
        try:
            importlib.import_module(module)
        except ImportError as error:
            return Check("native core", "fail", f"{module}: {error}", "build it: make native (or pip install -e .)")
    return Check("native core", "ok", "index, drafters and kernels load")


def torch_and_devices() -> Iterator[Check]:
    """The build of torch, and the accelerators it sees."""
    try:
        import torch
    except ImportError as error:
        yield Check("torch", "fail", str(error), "pip install torch")
        return
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"
    yield Check("torch", "ok", f"{torch.__version__} ({build} build, {torch.get_num_threads()} threads)")
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        yield Check("GPU", "ok", f"{properties.name}, {_gibibytes(properties.total_memory)}")
    elif torch.backends.mps.is_available():
        yield Check("GPU", "ok", "Apple GPU (MPS)")
    elif shutil.which("nvidia-smi") and not torch.version.cuda:
        yield Check("GPU", "warn", "an NVIDIA driver, but a CPU build of torch", "install a CUDA build of torch")
    else:
        yield Check("GPU", "ok", "none; the embedded engine runs on the CPU")


def cpu() -> Check:
    """Cores this process may use and the instruction sets that matter."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    features = [feature for feature in CPU_FEATURES if feature in cpu_flags()]
    detail = f"{cpu_name()}, {cores} cores, {', '.join(features) or 'no vector features known'}"
    if platform.machine() in {"x86_64", "AMD64"} and "avx2" not in features:
        return Check("CPU", "warn", detail, "expect slow decoding: this CPU has no AVX2")
    return Check("CPU", "ok", detail)


def memory() -> Check:
    """Memory that programs can still have."""
    import psutil

    available = psutil.virtual_memory().available
    if available < MIN_MEMORY_BYTES:
        return Check("memory", "warn", f"{_gibibytes(available)} free", "close something, or lower engine.kv_tokens")
    return Check("memory", "ok", f"{_gibibytes(available)} free")


def model_present(settings: Settings) -> Check:
    """The model that the settings name; looks only, fetches nothing."""
    from agentspec.engines.local.pull import CATALOGUE, models_directory, pulled

    name = settings.engine.model
    if name in pulled(settings.cache_directory):
        return Check("model", "ok", f"{name} in {models_directory(settings.cache_directory)}")
    if name in CATALOGUE:
        return Check("model", "warn", f"{name} was not pulled yet", f"agentspec models pull {name}")
    folder = Path(name).expanduser()
    if (folder / "config.json").is_file():
        return Check("model", "ok", str(folder))
    if name.count("/") == 1 and not folder.exists():
        return Check("model", "ok", f"{name}, a hub id: fetched when it is first used")
    return Check("model", "fail", f"there is no model {name}", "agentspec models list; or name a folder or a hub id")


def grammars() -> Check:
    """The tree-sitter grammars that mark definitions and identifiers."""
    from agentspec.index.grammars import GRAMMARS

    missing = sorted({grammar.package for grammar in GRAMMARS if importlib.util.find_spec(grammar.module) is None})
    if missing:
        hint = f"pip install {' '.join(missing)}; until then those languages are indexed without syntax"
        return Check("grammars", "warn", f"{len(missing)} missing", hint)
    return Check("grammars", "ok", f"{len(GRAMMARS)} languages")


def writable(name: str, folder: Path) -> Check:
    """Whether files can be made in `folder`, or in the first of its parents that exists; makes nothing."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return Check(name, "fail", f"{folder} cannot be written", f"make {existing} writable, or name another folder")
    free = shutil.disk_usage(existing).free
    return Check(name, "ok", f"{folder} ({_gibibytes(free)} free)")


def sglang(settings: Settings) -> Check:
    """Whether the SGLang engine could be used; needed only when the settings ask for it."""
    from agentspec.engines.sglang.command import device_of
    from agentspec.engines.sglang.requirements import missing, sglang_version

    asked = settings.engine.kind == "sglang"
    version = sglang_version()
    if version is None:
        status: Status = "fail" if asked and settings.sglang.url is None else "ok"
        hint = "pip install 'agentspec[sglang]'" if status == "fail" else ""
        return Check("SGLang", status, "not installed (optional: the production engine on GPUs)", hint)
    if problems := missing():
        text = f"{version} lacks what the plugin needs: {'; '.join(problems)}"
        return Check("SGLang", "fail" if asked else "warn", text, "pip install 'agentspec[sglang]'")
    if asked and device_of(settings) == "cpu":
        return Check(
            "SGLang", "warn", f"{version}, without a GPU", "works for trying it out; use --engine local for speed"
        )
    return Check("SGLang", "ok", version)


def _gibibytes(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"


def _print_table(checks: list[Check]) -> None:
    from rich.table import Table

    colours = {"ok": "green", "warn": "yellow", "fail": "red"}
    table = Table(box=None, show_header=False, pad_edge=False)
    for check in checks:
        table.add_row(f"[{colours[check.status]}]{check.status}[/]", check.name, check.detail)
        if check.hint:
            table.add_row("", "", f"[bold]→ {check.hint}[/]")
    output().print(table)
