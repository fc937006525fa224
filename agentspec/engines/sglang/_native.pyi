from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

def pack(
    tokens: Sequence[NDArray[np.int32]],
    parents: Sequence[NDArray[np.int32]],
    roots: NDArray[np.int64],
    lengths: NDArray[np.int64],
    width: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]: ...
