"""What the lean forward needs to know of a Llama-like model, read from its Hugging Face configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig

FAMILIES = frozenset({"llama", "qwen2", "qwen3"})
"""`model_type` values whose decoder layers the lean forward computes."""

STATIC_ROPE_TYPES = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary variants whose frequencies do not depend on the length of the sequence."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """Sizes and variants of a decoder.

    Attributes:
        layers: decoder layers.
        hidden: width of the residual stream.
        heads: query heads.
        kv_heads: key/value heads.
        head_dim: width of a head.
        intermediate: width of the gated feed-forward layer.
        vocab_size: rows of the embedding.
        context_length: positions the model was made for.
        norm_epsilon: added to the mean square in every RMS norm.
        inverse_frequencies: `float32[head_dim / 2]`, radians per position of each rotated pair.
        rope_scale: factor on cosines and sines (yarn; 1 elsewhere).
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab_size: int
    context_length: int
    norm_epsilon: float
    inverse_frequencies: Tensor
    rope_scale: float

    @classmethod
    def of(cls, config: PretrainedConfig) -> Architecture | None:
        """The architecture that `config` describes, or None where the lean forward does not compute it."""
        if config.model_type not in FAMILIES or config.hidden_act != "silu":
            return None
        if set(getattr(config, "layer_types", None) or ["full_attention"]) != {"full_attention"}:
            return None
        rope = config.rope_parameters
        kind = rope.get("rope_type", "default")
        if kind not in STATIC_ROPE_TYPES or rope.get("partial_rotary_factor", 1.0) != 1.0:
            return None
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        if kind == "default":
            exponent = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
            frequencies, scale = 1.0 / (rope["rope_theta"] ** exponent), 1.0
        else:
            frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
        return cls(
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=head_dim,
            intermediate=config.intermediate_size,
            vocab_size=config.vocab_size,
            context_length=config.max_position_embeddings,
            norm_epsilon=config.rms_norm_eps,
            inverse_frequencies=frequencies.to(torch.float32),
            rope_scale=float(scale),
        )
