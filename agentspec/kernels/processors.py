"""Logits processors: what changes the target's logits before a token is drawn.

A processor sees the tokens of the request in order, one `advance` for each token that is really emitted. Acceptance
draws lazily along one path of the draft tree (see `agentspec.kernels.acceptance`), so at every node the state is that
of the node's own path, and no processor needs to be rolled back.

The order is that of vLLM: bias, repetition penalty, frequency and presence penalty, then temperature, min-p, top-k and
top-p (those four in `agentspec.kernels.sampling`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray


class LogitsProcessor(Protocol):
    """Changes the logits of one request, depending on the tokens before.

    Attributes:
        follows_path: True when `advance` with each emitted token is all that the processor needs. A processor that
            cannot follow the tokens of a verify step one by one says False, and its request is decoded plainly.
    """

    follows_path: bool

    def apply(self, logits: torch.Tensor) -> None:
        """Change `logits`, `float32[V]` on the CPU, in place, for the token after all that `advance` has seen."""

    def advance(self, token: int) -> None:
        """Take note of the token that was emitted."""


class LogitBias:
    """Adds a constant to the logits of single tokens.

    Args:
        bias: token id to bias.
    """

    follows_path = True

    def __init__(self, bias: Mapping[int, float]) -> None:
        self._tokens = torch.tensor(list(bias.keys()), dtype=torch.int64)
        self._bias = torch.tensor(list(bias.values()), dtype=torch.float32)

    def apply(self, logits: torch.Tensor) -> None:
        """Add the bias."""
        logits.index_add_(0, self._tokens, self._bias)

    def advance(self, token: int) -> None:
        """Bias does not depend on the text."""


class RepetitionPenalty:
    """Makes tokens of the prompt and of the output less likely, as in CTRL (Keskar et al., 2019).

    Args:
        penalty: divides positive and multiplies negative logits; 1 changes nothing.
        prompt: `int32[P]`.
        vocab_size: length of the logits.
    """

    follows_path = True

    def __init__(self, penalty: float, prompt: NDArray[np.int32], vocab_size: int) -> None:
        self._penalty = penalty
        self._seen = torch.zeros(vocab_size, dtype=torch.bool)
        self._seen[torch.from_numpy(prompt).long()] = True

    def apply(self, logits: torch.Tensor) -> None:
        """Penalise every token seen so far."""
        penalised = torch.where(logits > 0, logits / self._penalty, logits * self._penalty)
        torch.where(self._seen, penalised, logits, out=logits)

    def advance(self, token: int) -> None:
        """From now on `token` is penalised."""
        self._seen[token] = True


class OccurrencePenalty:
    """OpenAI's frequency and presence penalties over the tokens generated so far (not the prompt's).

    Args:
        frequency: subtracted once per occurrence.
        presence: subtracted once from tokens that occur at all.
        vocab_size: length of the logits.
    """

    follows_path = True

    def __init__(self, frequency: float, presence: float, vocab_size: int) -> None:
        self._frequency = frequency
        self._presence = presence
        self._counts = torch.zeros(vocab_size, dtype=torch.float32)

    def apply(self, logits: torch.Tensor) -> None:
        """Subtract both penalties."""
        logits.sub_(self._counts, alpha=self._frequency)
        logits.sub_(self._counts.clamp(max=1), alpha=self._presence)

    def advance(self, token: int) -> None:
        """Count `token`."""
        self._counts[token] += 1
