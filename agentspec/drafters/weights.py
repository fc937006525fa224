"""The learnt numbers of the ranker: one data file, no tokenizer in it."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np

from agentspec.drafters import _native
from agentspec.errors import InvalidRequestError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

WEIGHTS_FILE = "weights.json"

SHAPES: dict[str, tuple[int, ...]] = {
    "origin_match": (_native.ORIGINS, _native.MATCH_BUCKETS),
    "relation_match": (_native.RELATIONS, _native.MATCH_BUCKETS),
    "recency": (_native.ORIGINS, _native.RECENCIES),
    "none": (_native.MATCH_BUCKETS,),
    "hidden": (_native.FEATURES, _native.HIDDEN),
    "hidden_bias": (_native.HIDDEN,),
    "output": (_native.HIDDEN,),
    "output_bias": (1,),
}
"""Every array of the file with its shape; what they mean is said in `native/ranker.hpp`."""

Weights = dict[str, "NDArray[np.float32]"]


def read_weights(file: Path | None = None) -> Weights:
    """The arrays of `SHAPES`.

    Args:
        file: as `write_weights` writes it; None: the one shipped with the package.

    Raises:
        InvalidRequestError: the file does not hold these arrays.
    """
    text = (files(__package__) / WEIGHTS_FILE if file is None else file).read_text()
    values = json.loads(text)
    if set(values) != set(SHAPES):
        raise InvalidRequestError(f"ranker weights hold {sorted(values)}; expected {sorted(SHAPES)}")
    arrays = {name: np.asarray(value, np.float32) for name, value in values.items()}
    for name, shape in SHAPES.items():
        if arrays[name].shape != shape:
            raise InvalidRequestError(f"ranker weights: {name} has shape {arrays[name].shape}; expected {shape}")
    return arrays


def write_weights(weights: Weights, file: Path) -> None:
    """Write the arrays of `SHAPES` with four significant digits, one array a line."""
    lines = []
    for name in SHAPES:
        rounded = [[float(f"{x:.4g}") for x in row] for row in np.atleast_2d(weights[name]).tolist()]
        lines.append(f"{json.dumps(name)}: {json.dumps(rounded if weights[name].ndim > 1 else rounded[0])}")
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n")


@cache
def shipped_ranker() -> _native.Ranker:
    """The ranker of the shipped weights; immutable, shared by all sessions."""
    return _native.Ranker(read_weights())
