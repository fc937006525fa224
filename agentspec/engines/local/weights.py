"""Weights of a Llama-like decoder, projections that share an input fused into one matrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Self

import torch

from agentspec.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

Fetch = Callable[[str], "Tensor | None"]
"""Reads a checkpoint tensor by its Hugging Face name; None where the checkpoint has none."""


def required(fetch: Fetch, name: str) -> Tensor:
    """The checkpoint tensor `name`.

    Raises:
        ModelError: the checkpoint has none.
    """
    tensor = fetch(name)
    if tensor is None:
        raise ModelError(f"the model's weights lack {name}; the files do not fit its config.json, fetch them again")
    return tensor


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer.

    Attributes:
        attention_norm: `[hidden]`.
        qkv: `[(heads + 2 * kv_heads) * head_dim, hidden]`, query, key and value rows in that order.
        qkv_bias: `[(heads + 2 * kv_heads) * head_dim]`, or None.
        query_norm: `[head_dim]` (Qwen3), or None.
        key_norm: `[head_dim]` (Qwen3), or None.
        output: `[hidden, heads * head_dim]`.
        output_bias: `[hidden]`, or None.
        feed_norm: `[hidden]`.
        gate_up: `[2 * intermediate, hidden]`, gate rows, then up rows.
        gate_up_bias: `[2 * intermediate]`, or None.
        down: `[hidden, intermediate]`.
        down_bias: `[hidden]`, or None.
    """

    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Tensor
    output_bias: Tensor | None
    feed_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None

    @classmethod
    def read(cls, fetch: Fetch, layer: int) -> Self:
        """Fetch and fuse the tensors of layer `layer`."""
        prefix = f"model.layers.{layer}."

        def fused(*names: str) -> Tensor | None:
            parts = [fetch(prefix + name) for name in names]
            present = [part for part in parts if part is not None]
            return torch.cat(present) if present else None

        def one(name: str) -> Tensor:
            return required(fetch, prefix + name)

        attention = [f"self_attn.{name}_proj" for name in "qkv"]
        feed = [f"mlp.{name}_proj" for name in ("gate", "up")]
        return cls(
            attention_norm=one("input_layernorm.weight"),
            qkv=torch.cat([one(f"{name}.weight") for name in attention]),
            qkv_bias=fused(*(f"{name}.bias" for name in attention)),
            query_norm=fetch(f"{prefix}self_attn.q_norm.weight"),
            key_norm=fetch(f"{prefix}self_attn.k_norm.weight"),
            output=one("self_attn.o_proj.weight"),
            output_bias=fetch(f"{prefix}self_attn.o_proj.bias"),
            feed_norm=one("post_attention_layernorm.weight"),
            gate_up=torch.cat([one(f"{name}.weight") for name in feed]),
            gate_up_bias=fused(*(f"{name}.bias" for name in feed)),
            down=one("mlp.down_proj.weight"),
            down_bias=fetch(f"{prefix}mlp.down_proj.bias"),
        )

    def to(self, device: torch.device, dtype: torch.dtype) -> Self:
        """The same weights elsewhere or in another type."""
        present = {field.name: getattr(self, field.name) for field in fields(self)}
        moved = {name: value.to(device, dtype) for name, value in present.items() if value is not None}
        return replace(self, **moved)


@dataclass(frozen=True, slots=True)
class OuterWeights:
    """What surrounds the decoder layers.

    Attributes:
        embedding: `[V, hidden]`.
        norm: `[hidden]`, the norm before the head.
        head: `[V, hidden]`; the embedding itself where the model ties them.
    """

    embedding: Tensor
    norm: Tensor
    head: Tensor

    @classmethod
    def read(cls, fetch: Fetch) -> Self:
        """Fetch the three tensors."""
        embedding = required(fetch, "model.embed_tokens.weight")
        head = fetch("lm_head.weight")
        return cls(embedding, required(fetch, "model.norm.weight"), embedding if head is None else head)
