"""Chooses device, element type and implementation for a model, and loads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from transformers import AutoConfig, GenerationConfig

from agentspec.engines.local.architecture import Architecture
from agentspec.engines.local.checkpoint import Checkpoint, model_folder
from agentspec.engines.local.hardware import available_memory
from agentspec.engines.local.model import ModelRuntime
from agentspec.engines.local.native_model import NativeModel
from agentspec.engines.local.torch_model import TorchModel
from agentspec.engines.local.transformers_model import TransformersModel
from agentspec.engines.local.tuning import fastest_dtype, fastest_threads
from agentspec.errors import ModelError

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PretrainedConfig

    from agentspec.engines.local.model import TargetModel

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_model(
    model: str, cache_directory: Path, *, device: str, dtype: str, context_length: int | None, threads: int | None
) -> TargetModel:
    """See `TargetModel.load`."""
    folder = model_folder(model, cache_directory)
    try:
        config = AutoConfig.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"the configuration in {folder} cannot be read: {error}") from error
    where = _device(device)
    runtime = ModelRuntime(
        device=where,
        dtype=_dtype(dtype, where, cache_directory),
        context_length=_context_length(config.get_text_config(), context_length),
        eos_token_ids=_end_tokens(config, folder),
    )
    architecture = Architecture.of(config)
    if architecture is None:
        if threads is not None:
            torch.set_num_threads(threads)
        return TransformersModel(folder, config, runtime)
    checkpoint = Checkpoint(folder)
    _check_memory(checkpoint, runtime)
    if where.type != "cpu" or not NativeModel.computes(architecture):
        return TorchModel(architecture, checkpoint.fetch, runtime)
    # What is left to torch beside the native forward is small; its own thread pool would spin on our cores.
    torch.set_num_threads(1)
    native = NativeModel(architecture, checkpoint.fetch, runtime, threads=threads or 1)
    if threads is None:
        native.threads = fastest_threads(native, cache_directory)
    return native


def _check_memory(checkpoint: Checkpoint, runtime: ModelRuntime) -> None:
    needed = checkpoint.elements * runtime.dtype.itemsize
    cuda = runtime.device.type == "cuda"
    free = torch.cuda.mem_get_info(runtime.device)[0] if cuda else available_memory()
    if needed > free:
        raise ModelError(
            f"the model's weights take {needed / 2**30:.1f} GiB as {runtime.dtype}, and {free / 2**30:.1f} GiB of "
            "memory are free; choose a smaller model, or bfloat16 where this was float32"
        )


def _device(name: str) -> torch.device:
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next(candidate for candidate in ("cuda", "mps", "cpu") if available[candidate])
    if not available.get(name, False):
        usable = ", ".join(candidate for candidate, there in available.items() if there)
        raise ModelError(f"device {name} is not available here; usable: {usable}")
    return torch.device(name)


def _dtype(name: str, device: torch.device, cache_directory: Path) -> torch.dtype:
    if name == "auto":
        return fastest_dtype(cache_directory) if device.type == "cpu" else torch.bfloat16
    if name == "float16" and device.type == "cpu":
        raise ModelError("float16 is not computed on the CPU; use bfloat16 or float32")
    return DTYPES[name]


def _context_length(config: PretrainedConfig, wanted: int | None) -> int:
    own: int = config.max_position_embeddings
    if wanted is not None and wanted > own:
        raise ModelError(f"the model was made for {own} positions; a context of {wanted} is more than it can do")
    return wanted or own


def _end_tokens(config: PretrainedConfig, folder: Path) -> frozenset[int]:
    """End tokens of the generation settings where there are any (chat models name theirs there), else the config's."""
    ids = config.eos_token_id
    if (folder / "generation_config.json").is_file():
        ids = GenerationConfig.from_pretrained(folder).eos_token_id or ids
    return frozenset([ids] if isinstance(ids, int) else ids or [])
