"""The verify-cost curve T(n) of a random Llama-shaped model in the local engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from transformers import LlamaConfig

from agentspec.engines.local.architecture import Architecture
from agentspec.engines.local.cost import measure_cost
from agentspec.engines.local.model import ModelRuntime
from agentspec.engines.local.torch_model import TorchModel

if TYPE_CHECKING:
    from agentspec.engines.local.cost import CostCurve

LLAMA_8B = LlamaConfig(
    vocab_size=128_256,
    hidden_size=4096,
    intermediate_size=14_336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    max_position_embeddings=8192,
    tie_word_embeddings=False,
)
TINY = LlamaConfig(
    vocab_size=128,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
    tie_word_embeddings=False,
)


def random_model(config: LlamaConfig, device: str, dtype: torch.dtype) -> TorchModel:
    """A model whose weights are made where it runs."""
    head_dim = config.hidden_size // config.num_attention_heads
    sizes = {
        "q_proj": (config.hidden_size, config.hidden_size),
        "k_proj": (config.num_key_value_heads * head_dim, config.hidden_size),
        "v_proj": (config.num_key_value_heads * head_dim, config.hidden_size),
        "o_proj": (config.hidden_size, config.hidden_size),
        "gate_proj": (config.intermediate_size, config.hidden_size),
        "up_proj": (config.intermediate_size, config.hidden_size),
        "down_proj": (config.hidden_size, config.intermediate_size),
        "embed_tokens": (config.vocab_size, config.hidden_size),
        "lm_head": (config.vocab_size, config.hidden_size),
    }

    def fetch(name: str) -> torch.Tensor | None:
        if name.endswith("norm.weight") and "q_norm" not in name and "k_norm" not in name:
            return torch.ones(config.hidden_size, device=device, dtype=dtype)
        kind = name.removesuffix(".weight").rsplit(".", 1)[-1]
        if not name.endswith(".weight") or kind not in sizes:
            return None
        return torch.empty(sizes[kind], device=device, dtype=dtype).normal_(std=0.02)

    architecture = Architecture.of(config)
    if architecture is None:
        raise ValueError("the local engine's own forward does not compute this configuration")
    runtime = ModelRuntime(torch.device(device), dtype, config.max_position_embeddings, frozenset())
    return TorchModel(architecture, fetch, runtime)


def cost_curve(config: LlamaConfig, device: str, dtype: torch.dtype, seconds: float) -> CostCurve:
    """Measure T(n) for up to `seconds`."""
    return measure_cost(random_model(config, device, dtype), seconds)
