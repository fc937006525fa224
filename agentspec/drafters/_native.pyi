from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentspec.index._native import Segment

ORIGINS: int
RELATIONS: int
RECENCIES: int
MATCH_BUCKETS: int
FEATURES: int
NODE_FEATURES: int
HIDDEN: int
FUSION_TERMS: int
FUSION_LEAST: float
FUSION_LEAST_LEFT: float

class Ranker:
    def __init__(self, weights: dict[str, NDArray[np.float32]], wide: bool = True) -> None: ...

class IndexedText:
    def __init__(self, tokens: NDArray[np.int32]) -> None: ...
    def __len__(self) -> int: ...
    def find(
        self, context: NDArray[np.int32], limit: int, enough: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]: ...

def find_in_segment(
    segment: Segment, live: NDArray[np.uint64], context: NDArray[np.int32], limit: int, shortest: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]: ...

class TokenClasses:
    def __init__(self, classes: NDArray[np.uint8]) -> None: ...

class FusionWeights:
    def __init__(self, weights: dict[str, NDArray[np.float32]]) -> None: ...

class Session:
    def __init__(self, ranker: Ranker, fusion: FusionWeights, prompt: NDArray[np.int32]) -> None: ...
    def add_text(self, text: IndexedText, origin: int) -> int: ...
    def add_pair(
        self,
        open: NDArray[np.int32],
        echo: NDArray[np.int32],
        boundary: NDArray[np.int32],
        close: NDArray[np.int32],
        close_text: int,
        close_position: int,
    ) -> None: ...
    def latest_pair(self) -> int: ...
    def set_token_classes(self, classes: TokenClasses) -> None: ...
    def add_marker(self, marker: NDArray[np.int32], text: int, position: int) -> None: ...
    def add_segment(self, segment: Segment, live: NDArray[np.uint64]) -> int: ...
    def set_edited(self, text: int, start: int, end: int) -> None: ...
    def start_draft(self, text: int, position: int) -> None: ...
    def propose(
        self,
        max_nodes: int,
        max_depth: int,
        min_path_prob: float,
        cost: NDArray[np.float32] | None,
        tokens: NDArray[np.int32] | None = None,
        parents: NDArray[np.int32] | None = None,
        prob: NDArray[np.float32] | None = None,
        source: NDArray[np.uint8] | None = None,
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32], NDArray[np.uint8]]: ...
    def commit(self, tokens: NDArray[np.int32]) -> bool: ...
    def await_tokens(self, tokens: NDArray[np.int32]) -> None: ...
    def counts(self) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]: ...
    def observe(self, next: NDArray[np.int32], max_depth: int) -> dict[str, NDArray[Any]]: ...
