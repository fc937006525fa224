"""Heads on disk: one folder with `config.json` and `model.safetensors`, as SpecForge writes and SGLang reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from agentspec.drafters.eagle3.config import HeadConfig
from agentspec.drafters.eagle3.head import Eagle3Head
from agentspec.errors import ModelError

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

PLAIN = {
    "fc": "fc.weight",
    "embedding_norm": "midlayer.input_layernorm.weight",
    "stream_norm": "midlayer.hidden_norm.weight",
    "output": "midlayer.self_attn.o_proj.weight",
    "feed_norm": "midlayer.post_attention_layernorm.weight",
    "down": "midlayer.mlp.down_proj.weight",
    "norm": "norm.weight",
    "lm_head": "lm_head.weight",
}
"""Checkpoint names of the modules that are stored as they are."""

FUSED = {
    "qkv": tuple(f"midlayer.self_attn.{name}_proj.weight" for name in "qkv"),
    "gate_up": tuple(f"midlayer.mlp.{name}_proj.weight" for name in ("gate", "up")),
}
"""Checkpoint names of the parts of the modules that are fused."""


def load_head(folder: Path, *, hidden: int, vocab_size: int, dtype: torch.dtype) -> Eagle3Head:
    """Load a head for a target.

    Args:
        folder: of the head.
        hidden: the target's width.
        vocab_size: the target's vocabulary.
        dtype: to compute in.

    Raises:
        ModelError: files are missing, damaged or truncated, tensors are missing, of another shape or not finite, or
            the head was made for another target.
    """
    config = HeadConfig.read(folder)
    if config.hidden != hidden or config.vocab_size != vocab_size:
        raise ModelError(
            f"the draft head in {folder} was made for a model of width {config.hidden} with {config.vocab_size} "
            f"tokens; this model has width {hidden} and {vocab_size} tokens. Name the head that belongs to this model"
        )
    file = folder / "model.safetensors"
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"the draft head's weights {file} cannot be read: {error}; fetch them again") from error
    # Some writers keep the decoder layer in a list, some prefix everything with "model.".
    tensors = {name.removeprefix("model.").replace("layers.0.", "midlayer."): value for name, value in tensors.items()}
    head = Eagle3Head(config)
    state = _state(tensors, head, file)
    head.load_state_dict(state)
    return head.to(dtype).eval().requires_grad_(requires_grad=False)


def _state(tensors: dict[str, Tensor], head: Eagle3Head, file: Path) -> dict[str, Tensor]:
    """The head's own state from the checkpoint's tensors, checked."""
    missing = {name for names in [*FUSED.values(), tuple(PLAIN.values())] for name in names} - tensors.keys()
    if missing:
        raise ModelError(f"the draft head's weights {file} lack {', '.join(sorted(missing))}")
    state = {f"{module}.weight": tensors[name] for module, name in PLAIN.items()}
    for module, names in FUSED.items():
        state[f"{module}.weight"] = torch.cat([tensors[name] for name in names])
    for name, own in head.named_parameters():
        if state[name].shape != own.shape:
            raise ModelError(
                f"the draft head's weights {file} hold a {name} of {list(state[name].shape)}; its config.json says "
                f"{list(own.shape)}"
            )
        if not state[name].isfinite().all():
            raise ModelError(f"the draft head's weights {file} hold NaN or infinity in {name}; fetch them again")
    state["draft_to_target"] = _draft_to_target(tensors.get("d2t"), head.config, file)
    return state


def _draft_to_target(offsets: Tensor | None, config: HeadConfig, file: Path) -> Tensor:
    own = torch.arange(config.draft_vocab_size)
    if offsets is None and config.draft_vocab_size == config.vocab_size:
        return own
    if offsets is None or offsets.shape != own.shape:
        found = "none" if offsets is None else list(offsets.shape)
        raise ModelError(f"the draft head's weights {file} need d2t of [{config.draft_vocab_size}]; found {found}")
    ids = own + offsets.long()
    if int(ids.min()) < 0 or int(ids.max()) >= config.vocab_size or len(set(ids.tolist())) != len(ids):
        raise ModelError(f"d2t in {file} does not map draft tokens to distinct ids below {config.vocab_size}")
    return ids


def save_head(head: Eagle3Head, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write a head; the weights appear by one rename after the configuration, so a reader never sees half of them."""
    folder.mkdir(parents=True, exist_ok=True)
    config, state = head.config, head.state_dict()
    tensors = {name: state[f"{module}.weight"] for module, name in PLAIN.items()}
    parts = {
        "qkv": (config.heads * config.head_dim, config.kv_heads * config.head_dim, config.kv_heads * config.head_dim),
        "gate_up": (config.intermediate, config.intermediate),
    }
    for module, names in FUSED.items():
        tensors.update(zip(names, state[f"{module}.weight"].split(parts[module]), strict=True))
    stored = {name: tensor.to(dtype).contiguous().clone() for name, tensor in tensors.items()}
    ids = state["draft_to_target"]
    stored["d2t"] = ids - torch.arange(len(ids))
    stored["t2d"] = torch.zeros(config.vocab_size, dtype=torch.bool).index_fill(0, ids, value=True)
    config.write(folder)
    partial = folder / "model.safetensors.partial"
    save_file(stored, partial, metadata={"format": "pt"})
    partial.replace(folder / "model.safetensors")
