"""Native CPU kernels: a batch-invariant decoder, and the memory bandwidth it is measured against."""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

KEY_BLOCK: int
"""Slots whose keys are stored together."""
ROW_MULTIPLE: int
"""Widths that the kernels compute are multiples of this."""
MAX_HEAD_DIM: int
"""Widest head."""

class Decoder:
    """A Llama-like decoder. Stored arrays are float32, or bfloat16 as the 16-bit integers that hold it."""

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
        embeddings: NDArray[Any] | None = None,
        drafted: int = 0,
    ) -> None: ...
    def fuse(self, features: NDArray[Any], stream: NDArray[Any]) -> None: ...

def read_bandwidth(bytes: int, threads: int, passes: int) -> float: ...
