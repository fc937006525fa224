"""Where a model's files are, and its tensors by name."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open

from agentspec.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

WANTED_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
"""What is fetched of a hub repository: configuration, weights, tokenizer, chat template."""


def model_folder(model: str, cache_directory: Path) -> Path:
    """The folder that holds the model a user named.

    Args:
        model: a model pulled before, a folder, or a hub id, tried in this order.
        cache_directory: where pulled models live.

    Raises:
        ModelError: there is no such model, or it cannot be fetched.
    """
    for folder in (cache_directory / "models" / model, Path(model).expanduser()):
        if (folder / "config.json").is_file():
            return folder
    if Path(model).expanduser().is_dir():
        raise ModelError(f"{model} is a folder without config.json; name a folder in Hugging Face format")
    if model.count("/") != 1:
        raise ModelError(
            f"no model named {model}: it was not pulled, and it is neither a folder nor a hub id (owner/name); "
            "`agentspec models list` shows what can be pulled"
        )
    try:
        return Path(snapshot_download(model, allow_patterns=list(WANTED_FILES)))
    except Exception as error:  # the hub client raises errors of several libraries
        raise ModelError(f"cannot fetch {model} from the hub: {error}") from error


class Checkpoint:
    """Read-only view of the safetensors files of a folder. Tensors are mapped, not copied, where they can be.

    Args:
        folder: with `model.safetensors`, or several files and their `model.safetensors.index.json`.

    Raises:
        ModelError: the files are missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._file_of: dict[str, Any] = {}
        index = folder / "model.safetensors.index.json"
        try:
            names = ["model.safetensors"]
            if index.is_file():
                names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
            for name in names:
                file: Any = safe_open(folder / name, framework="pt")
                self._file_of.update(dict.fromkeys(file.keys(), file))
        except (OSError, KeyError, ValueError, SafetensorError) as error:
            raise ModelError(f"the weights in {folder} cannot be read: {error}") from error

    def fetch(self, name: str) -> Tensor | None:
        """The tensor `name` in its stored type, or None."""
        file = self._file_of.get(name)
        return None if file is None else file.get_tensor(name)

    @property
    def elements(self) -> int:
        """Numbers in all tensors together."""
        shapes = (file.get_slice(name).get_shape() for name, file in self._file_of.items())
        return sum(math.prod(shape) for shape in shapes)
