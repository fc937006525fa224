"""The lean forward in plain torch: for accelerators, and the readable definition of what the native one computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it

from agentspec.engines.local.kv_cache import KVLayout
from agentspec.engines.local.model import TargetModel, batch_rows
from agentspec.engines.local.weights import LayerWeights, OuterWeights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from agentspec.engines.local.architecture import Architecture
    from agentspec.engines.local.model import ModelRuntime, SequenceInput
    from agentspec.engines.local.weights import Fetch


class TorchModel(TargetModel):
    """Llama, Qwen2 and Qwen3 decoders on any torch device."""

    def __init__(self, architecture: Architecture, fetch: Fetch, runtime: ModelRuntime) -> None:
        device, dtype = runtime.device, runtime.dtype
        layout = KVLayout(architecture.layers, architecture.kv_heads, architecture.head_dim, dtype, device)
        super().__init__(layout, architecture.vocab_size, runtime)
        self.architecture = architecture
        self._layers = [LayerWeights.read(fetch, layer).to(device, dtype) for layer in range(architecture.layers)]
        outer = OuterWeights.read(fetch)
        self._embedding = outer.embedding.to(device, dtype)
        self._norm = outer.norm.to(device, dtype)
        self._head = self._embedding if outer.head is outer.embedding else outer.head.to(device, dtype)
        self._frequencies = architecture.inverse_frequencies.to(device)

    @property
    def fingerprint(self) -> str:
        """See `TargetModel.fingerprint`."""
        return f"{super().fingerprint} {self.architecture.hidden} {self.architecture.intermediate}"

    @torch.inference_mode()
    def forward_with_hidden(self, inputs: Sequence[SequenceInput], capture: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """See `TargetModel.forward_with_hidden`."""
        tokens = torch.cat([one.tokens for one in inputs]).to(self.device)
        positions = torch.cat([one.positions for one in inputs]).to(self.device)
        angles = positions[:, None].float() * self._frequencies
        rotation = (
            (angles.cos() * self.architecture.rope_scale).to(self.layout.dtype)[:, None],
            (angles.sin() * self.architecture.rope_scale).to(self.layout.dtype)[:, None],
        )
        attention = [(one, one.full_mask().to(self.device)) for one in inputs]
        rows = batch_rows(inputs).to(self.device)
        stream = self._embedding[tokens]
        captured = []
        for index, layer in enumerate(self._layers):
            if index in capture:
                captured.append(stream.float())
            normed = self._rms(stream, layer.attention_norm)
            queries, keys, values = self._project(layer, normed, rotation)
            attended = _attend(attention, index, queries, keys, values)
            stream = stream + F.linear(attended, layer.output, layer.output_bias)
            normed = self._rms(stream, layer.feed_norm)
            gate, up = F.linear(normed, layer.gate_up, layer.gate_up_bias).chunk(2, -1)
            stream = stream + F.linear(F.silu(gate) * up, layer.down, layer.down_bias)
        logits = F.linear(self._rms(stream[rows], self._norm), self._head).float()
        hidden = torch.cat(captured, -1) if captured else logits.new_empty(len(tokens), 0)
        return logits, hidden

    def _project(
        self, layer: LayerWeights, normed: Tensor, rotation: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries `[M, heads, head_dim]`, rotated keys and values `[M, kv_heads, head_dim]`."""
        shape = self.architecture
        heads = F.linear(normed, layer.qkv, layer.qkv_bias).view(len(normed), -1, shape.head_dim)
        queries, keys, values = heads.tensor_split([shape.heads, shape.heads + shape.kv_heads], dim=1)
        if layer.query_norm is not None and layer.key_norm is not None:
            queries, keys = self._rms(queries, layer.query_norm), self._rms(keys, layer.key_norm)
        return _rotate(queries, *rotation), _rotate(keys, *rotation), values

    def _rms(self, rows: Tensor, weight: Tensor) -> Tensor:
        wide = rows.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.architecture.norm_epsilon)
        return weight * scaled.to(rows.dtype)


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of `[M, H, head_dim]` with `[M, 1, head_dim / 2]` tables, halves rotated as in Llama."""
    first, second = heads.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def _attend(
    inputs: Sequence[tuple[SequenceInput, Tensor]], layer: int, queries: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    """Attention of every sequence on its own cache under its own mask, `[M, heads * head_dim]`."""
    outputs = []
    start = 0
    for one, mask in inputs:
        rows = slice(start, start + len(one.tokens))
        k, v = one.cache.write(layer, keys[rows].transpose(0, 1), values[rows].transpose(0, 1))
        output = F.scaled_dot_product_attention(
            queries[rows].transpose(0, 1)[None], k[None], v[None], attn_mask=mask, enable_gqa=True
        )
        outputs.append(output[0].transpose(0, 1).flatten(1))
        start = rows.stop
    return torch.cat(outputs)
