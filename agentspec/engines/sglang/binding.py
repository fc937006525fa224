"""What a request tells the worker: the object under `custom_params["agentspec"]`.

The scheduler process dies with any exception of its worker, so nothing here raises: a field that does not fit is
dropped, with a warning that ends up in the request's receipt.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

PARAMS_KEY = "agentspec"
"""Our object in SGLang's `custom_params`."""

MAX_PREDICTION_TOKENS = 1_000_000
_STORE = re.compile(r"[^/\\\0.][^/\\\0]*/[0-9a-f]{16}")
"""A store's folder below the index directory: repository, then tokenizer (see `agentspec.index.store`)."""


@dataclass(frozen=True, slots=True)
class RequestBinding:
    """What drafting may use for one request.

    Attributes:
        store: folder of the repository's index, relative to the index directory.
        generation: the generation that the caller saw last; an older one draws a warning.
        edited_path: file of the repository that is being edited.
        prediction: `int32[M]`, the client's predicted output.
        speculation: False decodes plainly.
        warnings: why something asked for is not done.
    """

    store: str | None = None
    generation: int | None = None
    edited_path: str | None = None
    prediction: NDArray[np.int32] | None = None
    speculation: bool = True
    warnings: tuple[str, ...] = ()

    def as_params(self) -> dict[str, Any]:
        """The JSON object that `parse` reads."""
        return {
            "store": self.store,
            "generation": self.generation,
            "edited_path": self.edited_path,
            "prediction": None if self.prediction is None else self.prediction.tolist(),
            "speculation": self.speculation,
        }


def parse(custom_params: object, vocabulary_size: int) -> RequestBinding:
    """Read a request's `custom_params`.

    Args:
        custom_params: whatever the client sent.
        vocabulary_size: token ids at or above it are refused.
    """
    ours = custom_params.get(PARAMS_KEY) if isinstance(custom_params, dict) else None
    if ours is None:
        return RequestBinding()
    if not isinstance(ours, dict):
        return RequestBinding(warnings=(f"custom_params.{PARAMS_KEY} is not an object and was ignored",))
    warnings: list[str] = []
    return RequestBinding(
        store=_store(ours, warnings),
        generation=_typed(ours, "generation", int, warnings),
        edited_path=_typed(ours, "edited_path", str, warnings),
        prediction=_prediction(ours, vocabulary_size, warnings),
        speculation=_typed(ours, "speculation", bool, warnings) is not False,
        warnings=tuple(warnings),
    )


_T = TypeVar("_T")


def _typed(params: Mapping[str, object], name: str, kind: type[_T], warnings: list[str]) -> _T | None:
    value = params.get(name)
    if value is None:
        return None
    if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    warnings.append(f"{PARAMS_KEY}.{name} is of type {type(value).__name__}, not {kind.__name__}, and was ignored")
    return None


def _store(params: Mapping[str, object], warnings: list[str]) -> str | None:
    store = _typed(params, "store", str, warnings)
    if store is None or _STORE.fullmatch(store):
        return store
    warnings.append(f"{PARAMS_KEY}.store {store[:80]!r} names no index store and was ignored")
    return None


def _prediction(params: Mapping[str, object], vocabulary_size: int, warnings: list[str]) -> NDArray[np.int32] | None:
    tokens = params.get("prediction")
    if tokens is None:
        return None
    problem = None
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        problem = "is not a list of token ids"
    elif len(tokens) > MAX_PREDICTION_TOKENS:
        problem = f"has more than {MAX_PREDICTION_TOKENS} tokens"
    elif tokens and not 0 <= min(tokens) <= max(tokens) < vocabulary_size:
        problem = f"holds ids outside the vocabulary of {vocabulary_size}"
    if problem is None:
        return np.asarray(tokens, np.int32)
    warnings.append(f"{PARAMS_KEY}.prediction {problem} and was ignored")
    return None
