"""The learnt numbers: of the ranker, and of its fusion with another drafter; data files, no tokenizer in them."""

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


FUSION_FILE = "fusion.json"

FUSION_SHAPES: dict[str, tuple[int, ...]] = dict.fromkeys(("both", "texts", "other"), (_native.FUSION_TERMS,))
"""The same for what weighs an outside drafter's word against the texts'; see `native/fusion.hpp`."""


def read_weights(file: Path | None = None) -> Weights:
    """The arrays of `SHAPES`.

    Args:
        file: as `write_weights` writes it; None: the one shipped with the package.

    Raises:
        InvalidRequestError: the file does not hold these arrays.
    """
    return _read(WEIGHTS_FILE, file, SHAPES)


def read_fusion(file: Path | None = None) -> Weights:
    """The arrays of `FUSION_SHAPES`; otherwise as `read_weights`."""
    return _read(FUSION_FILE, file, FUSION_SHAPES)


def _read(shipped: str, file: Path | None, shapes: dict[str, tuple[int, ...]]) -> Weights:
    values = json.loads((files(__package__) / shipped if file is None else file).read_text())
    if set(values) != set(shapes):
        raise InvalidRequestError(f"{file or shipped} holds {sorted(values)}; expected {sorted(shapes)}")
    arrays = {name: np.asarray(value, np.float32) for name, value in values.items()}
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            raise InvalidRequestError(f"{file or shipped}: {name} has shape {arrays[name].shape}; expected {shape}")
    return arrays


def write_weights(weights: Weights, file: Path) -> None:
    """Write arrays with four significant digits, one array a line."""
    lines = []
    for name, array in weights.items():
        rounded = [[float(f"{x:.4g}") for x in row] for row in np.atleast_2d(array).tolist()]
        lines.append(f"{json.dumps(name)}: {json.dumps(rounded if array.ndim > 1 else rounded[0])}")
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n")


@cache
def shipped_ranker() -> _native.Ranker:
    """The ranker of the shipped weights; immutable, shared by all sessions."""
    return _native.Ranker(read_weights())


@cache
def shipped_fusion() -> _native.FusionWeights:
    """The shipped weights of `FUSION_SHAPES`; immutable, shared by all sessions."""
    return _native.FusionWeights(read_fusion())
