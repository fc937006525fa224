"""The EAGLE-3 head: fuses three residual streams of the target and runs one decoder layer over them.

At position i the layer reads the token at i + 1 (its embedding, from the target) and the stream at i (fused from the
target's, or the head's own where the target has not been), and predicts the token at i + 2. Source: Li et al.,
"EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test", 2025.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from agentspec.drafters.eagle3.config import CAPTURED_LAYERS

if TYPE_CHECKING:
    from torch import Tensor

    from agentspec.drafters.eagle3.config import HeadConfig


class Eagle3Head(nn.Module):
    """Weights and the parts of the forward pass that training and drafting share; each brings its own attention.

    Attributes:
        config: sizes.
        draft_to_target: `int64[draft_vocab_size]`, the target's id of every draft token.
        frequencies: `float32[head_dim / 2]`, of the rotary embedding.
        rope_scale: factor of its cosines and sines.
    """

    draft_to_target: Tensor

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        width = config.hidden
        self.fc = nn.Linear(CAPTURED_LAYERS * width, width, bias=False)
        self.embedding_norm = nn.RMSNorm(width, config.norm_epsilon)
        self.stream_norm = nn.RMSNorm(width, config.norm_epsilon)
        self.qkv = nn.Linear(2 * width, (config.heads + 2 * config.kv_heads) * config.head_dim, bias=False)
        self.output = nn.Linear(config.heads * config.head_dim, width, bias=False)
        self.feed_norm = nn.RMSNorm(width, config.norm_epsilon)
        self.gate_up = nn.Linear(width, 2 * config.intermediate, bias=False)
        self.down = nn.Linear(config.intermediate, width, bias=False)
        self.norm = nn.RMSNorm(width, config.norm_epsilon)
        self.lm_head = nn.Linear(width, config.draft_vocab_size, bias=False)
        self.register_buffer("draft_to_target", torch.arange(config.draft_vocab_size))
        rope = {key: value for key, value in config.rope.items() if key != "max_position_embeddings"}
        rotary = LlamaRotaryEmbedding(
            LlamaConfig(
                hidden_size=width,
                num_attention_heads=config.heads,
                head_dim=config.head_dim,
                max_position_embeddings=config.rope["max_position_embeddings"],
                rope_parameters=rope,
            )
        )
        self.register_buffer("frequencies", rotary.inv_freq.clone(), persistent=False)
        self.rope_scale = float(rotary.attention_scaling)

    frequencies: Tensor

    def fuse(self, features: Tensor) -> Tensor:
        """Streams `[..., hidden]` from the target's captured ones, `[..., 3 * hidden]`."""
        fused: Tensor = self.fc(features)
        return fused

    def project(self, embeddings: Tensor, stream: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, queries and keys rotated.

        Args:
            embeddings: `[..., hidden]`, the target's embedding of each next token.
            stream: `[..., hidden]`.
            positions: `int64[...]`.

        Returns:
            `[..., heads, head_dim]`, and `[..., kv_heads, head_dim]` twice.
        """
        config = self.config
        both = torch.cat([self.embedding_norm(embeddings), self.stream_norm(stream)], -1)
        heads = self.qkv(both).unflatten(-1, (-1, config.head_dim))
        queries, keys, values = heads.tensor_split([config.heads, config.heads + config.kv_heads], dim=-2)
        angles = positions[..., None, None].float() * self.frequencies
        cos = (angles.cos() * self.rope_scale).to(heads.dtype)
        sin = (angles.sin() * self.rope_scale).to(heads.dtype)
        return _rotate(queries, cos, sin), _rotate(keys, cos, sin), values

    def merge(self, attended: Tensor, stream: Tensor) -> Tensor:
        """The outgoing stream `[..., hidden]` from the attention's result `[..., heads * head_dim]`."""
        stream = stream + self.output(attended)
        gate, up = self.gate_up(self.feed_norm(stream)).chunk(2, -1)
        outgoing: Tensor = stream + self.down(F.silu(gate) * up)
        return outgoing

    def logits(self, stream: Tensor) -> Tensor:
        """Logits over the draft vocabulary, `[..., draft_vocab_size]`."""
        logits: Tensor = self.lm_head(self.norm(stream))
        return logits


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of `[..., H, head_dim]` with `[..., 1, head_dim / 2]` tables, halves rotated as in Llama."""
    first, second = heads.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
