"""Native CPU kernels: a batch-invariant decoder, the memory bandwidth it is measured against, and drafting."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

KEY_BLOCK: int
"""Slots whose keys are stored together."""
ROW_MULTIPLE: int
"""Widths that the kernels compute are multiples of this."""
MAX_HEAD_DIM: int
"""Widest head."""

class Decoder:
    """A Llama-like decoder. Stored arrays are float32, or bfloat16 as the 16-bit integers that hold it.

    With `bytes` it rounds weights to 8 bits, and activations as they come, where the processor multiplies those; never
    the fusion.
    """

    def __init__(
        self,
        *,
        hidden: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        intermediate: int,
        norm_epsilon: float,
        bfloat16: bool,
        threads: int,
        instruction_set: str = "",
        bytes: bool = False,
    ) -> None: ...
    def add_layer(
        self,
        *,
        attention_norm: NDArray[Any],
        qkv: NDArray[Any],
        qkv_bias: NDArray[Any] | None,
        query_norm: NDArray[Any] | None,
        key_norm: NDArray[Any] | None,
        output: NDArray[Any],
        output_bias: NDArray[Any] | None,
        feed_norm: NDArray[Any],
        gate_up: NDArray[Any],
        gate_up_bias: NDArray[Any] | None,
        down: NDArray[Any],
        down_bias: NDArray[Any] | None,
        embedding_norm: NDArray[Any] | None = None,
    ) -> None: ...
    def set_head(self, norm: NDArray[Any], head: NDArray[Any]) -> None: ...
    def set_fusion(self, fusion: NDArray[Any]) -> None: ...
    def set_threads(self, threads: int) -> None: ...
    @property
    def instruction_set(self) -> str: ...
    @property
    def bytes(self) -> bool: ...
    def forward(
        self,
        *,
        stream: NDArray[Any],
        cosine: NDArray[Any],
        sine: NDArray[Any],
        keys: Sequence[NDArray[Any]],
        values: Sequence[NDArray[Any]],
        lengths: Sequence[int],
        counts: Sequence[int],
        masks: Sequence[NDArray[Any] | None],
        rows: NDArray[Any],
        capture: Sequence[int],
        logits: NDArray[Any],
        hidden: NDArray[Any],
    ) -> None: ...

class TreeGrowth:
    """A draft tree that grows level by level, each time below its likeliest leaves; see `session.Growth`.

    What is said of rows describes the nodes that `add_level` wants expanded: which of the rows before holds each one's
    parent (`sources`, `int64[r]`), their tokens (`following`, `int64[r]`) and which of all nodes expanded so far each
    of them sees (`mask`, `bool[r, drafted + r]`).
    """

    def __init__(self, *, depth: int, width: int, children: int, min_path_prob: float, level_gain: float) -> None: ...
    def add_level(self, ids: NDArray[np.int64], probs: NDArray[np.float32]) -> bool: ...
    @property
    def children(self) -> int: ...
    @property
    def tokens(self) -> NDArray[np.int32]: ...
    @property
    def parents(self) -> NDArray[np.int32]: ...
    @property
    def probs(self) -> NDArray[np.float32]: ...
    @property
    def sources(self) -> NDArray[np.int64]: ...
    @property
    def following(self) -> NDArray[np.int64]: ...
    @property
    def mask(self) -> NDArray[np.bool_]: ...

class DraftHead:
    """An EAGLE-3 head, whose layer and fusion are a `Decoder`'s; see `HeadRunner` for what it does."""

    def __init__(
        self,
        decoder: Decoder,
        embedding: NDArray[Any],
        draft_to_target: NDArray[np.int64],
        frequencies: NDArray[Any],
        rope_scale: float,
    ) -> None: ...
    def read(
        self, memory: DraftMemory, length: int, features: NDArray[Any], following: NDArray[np.int64], position: int
    ) -> None: ...
    def draft(self, memory: DraftMemory, length: int, growth: TreeGrowth, position: int) -> None: ...

class DraftMemory:
    """What a head keeps of one text."""

    def __init__(self, head: DraftHead, slots: int) -> None: ...
    def shift(self, dropped: int) -> None: ...

def read_bandwidth(bytes: int, threads: int, passes: int) -> float: ...
