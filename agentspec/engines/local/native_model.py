"""The lean forward on the CPU: one native call runs all layers.

It is batch-invariant: the logits of a token are bit for bit the same whether it is decoded alone, in a draft tree or
in a prefill, in float32 and in bfloat16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from agentspec.engines.local.kv_cache import KVLayout
from agentspec.engines.local.model import TargetModel, batch_rows
from agentspec.engines.local.weights import LayerWeights, OuterWeights
from agentspec.kernels import _native
from agentspec.kernels.native_arrays import floats, stored
from agentspec.kernels.reused_memory import ReusedMemory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from agentspec.engines.local.architecture import Architecture
    from agentspec.engines.local.model import ModelRuntime, SequenceInput
    from agentspec.engines.local.weights import Fetch

ROTATION_CHUNK = 1024
"""Positions whose rotations are computed at once, always the same ones together: results never depend on the batch."""


class NativeModel(TargetModel):
    """Llama, Qwen2 and Qwen3 decoders on the CPU, in float32 or bfloat16.

    Activations and sums are float32; bfloat16 rounds weights, keys, values and the inputs of matrix products.

    Args:
        architecture: sizes; see `computes`.
        fetch: reads the checkpoint.
        runtime: how to run it.
        threads: CPU threads of a forward pass.
        instruction_set: the most that the kernels may use ("avx512bf16", "avx512", "avx2", "portable"); empty: all
            that this processor has.
    """

    def __init__(
        self,
        architecture: Architecture,
        fetch: Fetch,
        runtime: ModelRuntime,
        *,
        threads: int = 1,
        instruction_set: str = "",
    ) -> None:
        layout = KVLayout(
            architecture.layers,
            architecture.kv_heads,
            architecture.head_dim,
            runtime.dtype,
            runtime.device,
            key_block=_native.KEY_BLOCK,
        )
        super().__init__(layout, architecture.vocab_size, runtime)
        self.architecture = architecture
        self._threads = threads
        self._decoder = _native.Decoder(
            hidden=architecture.hidden,
            heads=architecture.heads,
            kv_heads=architecture.kv_heads,
            head_dim=architecture.head_dim,
            intermediate=architecture.intermediate,
            norm_epsilon=architecture.norm_epsilon,
            bfloat16=runtime.dtype == torch.bfloat16,
            threads=threads,
            instruction_set=instruction_set,
        )
        for layer in range(architecture.layers):
            self._add_layer(LayerWeights.read(fetch, layer))
        outer = OuterWeights.read(fetch)
        self._embedding = outer.embedding
        self._decoder.set_head(floats(outer.norm), stored(outer.head.to(runtime.dtype)))
        self._logits = ReusedMemory()
        self._rotations = np.empty((2, 0, architecture.head_dim // 2), np.float32)

    @staticmethod
    def computes(architecture: Architecture) -> bool:
        """Whether the kernels handle these sizes."""
        sizes = (architecture.hidden, architecture.intermediate, architecture.head_dim)
        fits = all(size % _native.ROW_MULTIPLE == 0 for size in sizes)
        return fits and architecture.head_dim <= _native.MAX_HEAD_DIM

    @property
    def instruction_set(self) -> str:
        """What the kernels use of the processor."""
        return self._decoder.instruction_set

    @property
    def threads(self) -> int:
        """CPU threads of a forward pass."""
        return self._threads

    @threads.setter
    def threads(self, threads: int) -> None:
        self._threads = threads
        self._decoder.set_threads(threads)

    @property
    def runs_on_caller(self) -> bool:
        """See `TargetModel.runs_on_caller`."""
        return self._threads == 1

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that a pass reads whatever its size: those of all products, the head included."""
        shape = self.architecture
        queries, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        layer = shape.hidden * (2 * queries + 2 * kv + 3 * shape.intermediate)
        return (shape.layers * layer + shape.vocab_size * shape.hidden) * self.layout.dtype.itemsize

    @property
    def fingerprint(self) -> str:
        """See `TargetModel.fingerprint`."""
        shape = self.architecture
        sizes = (shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.head_dim, shape.intermediate)
        return f"{super().fingerprint} {sizes} {self.instruction_set} {self.threads}"

    @torch.inference_mode()
    def forward_with_hidden(self, inputs: Sequence[SequenceInput], capture: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """See `TargetModel.forward_with_hidden`."""
        single = len(inputs) == 1
        tokens = inputs[0].tokens if single else torch.cat([one.tokens for one in inputs])
        positions = inputs[0].positions if single else torch.cat([one.positions for one in inputs])
        rows = batch_rows(inputs)
        stream = self._embedding[tokens].to(self.layout.dtype).float()
        cosine, sine = self._rotation(positions.numpy())
        logits = self._logits.take(len(rows), self.vocab_size)
        hidden = torch.empty(len(tokens), len(capture) * self.architecture.hidden)
        self._decoder.forward(
            stream=stream.numpy(),
            cosine=cosine,
            sine=sine,
            keys=[stored(one.cache.k) for one in inputs],
            values=[stored(one.cache.v) for one in inputs],
            lengths=[one.cache.length for one in inputs],
            counts=[len(one.tokens) for one in inputs],
            masks=[None if one.mask is None else one.mask.numpy() for one in inputs],
            rows=rows.numpy(),
            capture=list(capture),
            logits=logits.numpy(),
            hidden=hidden.numpy(),
        )
        return logits, hidden

    def _add_layer(self, layer: LayerWeights) -> None:
        dtype = self.layout.dtype
        self._decoder.add_layer(
            attention_norm=floats(layer.attention_norm),
            qkv=stored(layer.qkv.to(dtype)),
            qkv_bias=_optional_floats(layer.qkv_bias),
            query_norm=_optional_floats(layer.query_norm),
            key_norm=_optional_floats(layer.key_norm),
            output=stored(layer.output.to(dtype)),
            output_bias=_optional_floats(layer.output_bias),
            feed_norm=floats(layer.feed_norm),
            gate_up=stored(layer.gate_up.to(dtype)),
            gate_up_bias=_optional_floats(layer.gate_up_bias),
            down=stored(layer.down.to(dtype)),
            down_bias=_optional_floats(layer.down_bias),
        )

    def _rotation(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Cosines and sines of the positions, `float32[M, head_dim / 2]` each."""
        while self._rotations.shape[1] <= positions.max():
            start = self._rotations.shape[1]
            angles = torch.arange(start, start + ROTATION_CHUNK)[:, None] * self.architecture.inverse_frequencies
            chunk = torch.stack([angles.cos(), angles.sin()]) * self.architecture.rope_scale
            self._rotations = np.concatenate([self._rotations, chunk.numpy()], 1)
        return self._rotations[0, positions], self._rotations[1, positions]


def _optional_floats(tensor: Tensor | None) -> NDArray[Any] | None:
    return None if tensor is None else floats(tensor)
