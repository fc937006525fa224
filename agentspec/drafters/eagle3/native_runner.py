"""The head on the CPU through the native kernels, which read its weights at the speed of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from agentspec.drafters.eagle3.runner import HeadRunner
from agentspec.kernels import _native
from agentspec.kernels.native_arrays import floats, stored

if TYPE_CHECKING:
    from torch import Tensor

    from agentspec.drafters.eagle3.config import HeadConfig
    from agentspec.drafters.eagle3.head import Eagle3Head

COMPUTED = (torch.float32, torch.bfloat16)
"""Element types that the kernels compute."""


class NativeHead:
    """A head's weights as the kernels read them; shared by all texts, one of which runs at a time.

    Args:
        head: in one of the types of `COMPUTED`, on the CPU.
        embedding: `[V, hidden]`, the target's, in the head's type.
        threads: of a pass.
        exact: multiply in that type even where the processor multiplies bytes.
        instruction_set: see `agentspec.engines.local.native_model.NativeModel`.

    Attributes:
        native: the head, ready to draft.
        bytes: whether its products are of bytes: weights rounded to 8 bits, and activations as they come.
    """

    def __init__(
        self, head: Eagle3Head, embedding: Tensor, threads: int, *, exact: bool = False, instruction_set: str = ""
    ) -> None:
        config = head.config
        decoder = _native.Decoder(
            hidden=config.hidden,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            intermediate=config.intermediate,
            norm_epsilon=config.norm_epsilon,
            bfloat16=embedding.dtype == torch.bfloat16,
            threads=threads,
            bytes=not exact,
            instruction_set=instruction_set,
        )
        decoder.add_layer(
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
        decoder.set_head(floats(head.norm.weight), stored(head.lm_head.weight.contiguous()))
        decoder.set_fusion(stored(head.fc.weight.contiguous()))
        self.bytes = decoder.bytes
        self.native = _native.DraftHead(
            decoder,
            stored(embedding.contiguous()),
            head.draft_to_target.numpy(),
            floats(head.frequencies),
            head.rope_scale,
        )

    @staticmethod
    def computes(config: HeadConfig, embedding: Tensor) -> bool:
        """Whether the kernels handle a head of these sizes, in this type and there."""
        sizes = (config.hidden, config.intermediate, config.head_dim)
        fits = all(size % _native.ROW_MULTIPLE == 0 for size in sizes) and config.head_dim <= _native.MAX_HEAD_DIM
        return fits and embedding.device.type == "cpu" and embedding.dtype in COMPUTED


class NativeRunner(HeadRunner):
    """A `NativeHead` on one text.

    Args:
        head: the weights.
        slots: see `HeadRunner`.
    """

    def __init__(self, head: NativeHead, slots: int) -> None:
        super().__init__(slots)
        self._head = head.native
        self._memory = _native.DraftMemory(head.native, slots)

    def _shift(self, dropped: int) -> None:
        self._memory.shift(dropped)

    def read(self, features: Tensor, following: Tensor, position: int) -> None:
        """See `HeadRunner.read`."""
        self._head.read(self._memory, self.length, floats(features), following.numpy(), position)
        self.length += len(following)

    def grow(self, tree: _native.TreeGrowth, position: int) -> None:
        """See `HeadRunner.grow`."""
        self._head.draft(self._memory, self.length, tree, position)
