"""The head on the CPU through the native kernels, which read its weights at the speed of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from agentspec.drafters.eagle3.runner import HeadRunner
from agentspec.kernels import _native
from agentspec.kernels.native_arrays import floats, stored

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from agentspec.drafters.eagle3.config import HeadConfig
    from agentspec.drafters.eagle3.head import Eagle3Head
    from agentspec.drafters.eagle3.runner import Behind

STORED = {torch.float32: np.float32, torch.bfloat16: np.int16}
"""Element types that the kernels compute, and how numpy sees them."""


class NativeHead:
    """A head's weights as the kernels read them; shared by all texts, one of which runs at a time.

    Args:
        head: in one of the types of `STORED`, on the CPU.
        embedding: `[V, hidden]`, the target's, in the head's type.
        threads: of a pass.
    """

    def __init__(self, head: Eagle3Head, embedding: Tensor, threads: int) -> None:
        config = head.config
        self.config = config
        self.embedding = embedding
        self.stored = STORED[embedding.dtype]
        self.draft_to_target = head.draft_to_target
        self._frequencies = head.frequencies
        self._rope_scale = head.rope_scale
        self.decoder = _native.Decoder(
            hidden=config.hidden,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            intermediate=config.intermediate,
            norm_epsilon=config.norm_epsilon,
            bfloat16=embedding.dtype == torch.bfloat16,
            threads=threads,
        )
        self.decoder.add_layer(
            attention_norm=floats(head.stream_norm.weight),
            qkv=stored(head.qkv.weight.contiguous()),
            qkv_bias=None,
            query_norm=None,
            key_norm=None,
            output=stored(head.output.weight.contiguous()),
            output_bias=None,
            feed_norm=floats(head.feed_norm.weight),
            gate_up=stored(head.gate_up.weight.contiguous()),
            gate_up_bias=None,
            down=stored(head.down.weight.contiguous()),
            down_bias=None,
            embedding_norm=floats(head.embedding_norm.weight),
        )
        self.decoder.set_head(floats(head.norm.weight), stored(head.lm_head.weight.contiguous()))
        self.decoder.set_fusion(stored(head.fc.weight.contiguous()))

    @staticmethod
    def computes(config: HeadConfig, embedding: Tensor) -> bool:
        """Whether the kernels handle a head of these sizes, in this type and there."""
        sizes = (config.hidden, config.intermediate, config.head_dim)
        fits = all(size % _native.ROW_MULTIPLE == 0 for size in sizes) and config.head_dim <= _native.MAX_HEAD_DIM
        return fits and embedding.device.type == "cpu" and embedding.dtype in STORED

    def rotation(self, positions: Tensor) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Cosines and sines of the positions, `float32[q, head_dim / 2]` each."""
        angles = positions[:, None].float() * self._frequencies
        return (angles.cos() * self._rope_scale).numpy(), (angles.sin() * self._rope_scale).numpy()


class NativeRunner(HeadRunner):
    """A `NativeHead` on one text; streams are float32.

    Args:
        head: the weights.
        slots: see `HeadRunner`.
    """

    def __init__(self, head: NativeHead, slots: int) -> None:
        super().__init__(head.draft_to_target, slots)
        config = head.config
        self._head = head
        blocks = slots // _native.KEY_BLOCK
        # Keys of a block lie slot fastest; see agentspec/engines/local/kv_cache.py.
        self._keys = np.zeros((1, config.kv_heads, blocks, config.head_dim * _native.KEY_BLOCK), head.stored)
        self._values = np.zeros((1, config.kv_heads, slots, config.head_dim), head.stored)

    def _shift(self, dropped: int) -> None:
        blocks = dropped // _native.KEY_BLOCK
        self._keys[:, :, : -blocks or None] = self._keys[:, :, blocks:].copy()
        self._values[:, :, : -dropped or None] = self._values[:, :, dropped:].copy()

    def fuse(self, features: Tensor) -> Tensor:
        """See `HeadRunner.fuse`."""
        stream = torch.empty(len(features), self._head.config.hidden)
        self._head.decoder.fuse(features.float().contiguous().numpy(), stream.numpy())
        return stream

    def run(self, stream: Tensor, following: Tensor, positions: Tensor, behind: Behind) -> tuple[Tensor, Tensor]:
        """See `HeadRunner.run`."""
        count, config = len(following), self._head.config
        outgoing = stream.clone()
        rows = np.arange(count - 1 if behind.last_only else 0, count)
        logits = torch.empty(len(rows), config.draft_vocab_size)
        cosine, sine = self._head.rotation(positions)
        self._head.decoder.forward(
            stream=outgoing.numpy(),
            cosine=cosine,
            sine=sine,
            keys=[self._keys],
            values=[self._values],
            lengths=[self.length],
            counts=[count],
            masks=[None if behind.mask is None else behind.mask.numpy()],
            rows=rows,
            capture=[],
            logits=logits.numpy(),
            hidden=np.empty((count, 0), np.float32),
            embeddings=self._head.embedding[following].float().numpy(),
            drafted=behind.drafted(count),
        )
        return outgoing[-len(rows) :], logits
