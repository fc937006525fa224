"""The target model as the scheduler sees it: one batched forward pass over caches, whatever computes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from agentspec.engines.local.kv_cache import KVCache, KVLayout

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor


@dataclass(frozen=True, slots=True)
class SequenceInput:
    """The new tokens of one sequence in one forward pass.

    Token i is written to slot `cache.length + i`; every one sees the whole committed prefix.

    Attributes:
        cache: the sequence's keys and values, with room for `q` more.
        tokens: `int64[q]` on the CPU.
        positions: `int64[q]` on the CPU, each token's distance from the start of the text.
        mask: `bool[q, q]` on the CPU, entry (i, j) set when token i sees token j, itself included; ancestors come
            before descendants. None: causal.
        logit_rows: `int64[r]` on the CPU, the tokens whose logits are wanted. None: all.
    """

    cache: KVCache
    tokens: Tensor
    positions: Tensor
    mask: Tensor | None = None
    logit_rows: Tensor | None = None

    def full_mask(self) -> Tensor:
        """`bool[q, length + q]`: the whole committed prefix, then the tail's own mask."""
        count = len(self.tokens)
        prefix = torch.ones(count, self.cache.length, dtype=torch.bool)
        tail = torch.ones(count, count, dtype=torch.bool).tril() if self.mask is None else self.mask
        return torch.cat([prefix, tail], 1)

    def wanted_rows(self) -> Tensor:
        """`int64[r]`: `logit_rows`, written out."""
        return torch.arange(len(self.tokens)) if self.logit_rows is None else self.logit_rows


def batch_rows(inputs: Sequence[SequenceInput]) -> Tensor:
    """`int64[R]`: rows of the concatenated tokens of `inputs` whose logits are wanted."""
    if len(inputs) == 1:
        return inputs[0].wanted_rows()
    rows = []
    start = 0
    for one in inputs:
        rows.append(one.wanted_rows() + start)
        start += len(one.tokens)
    return torch.cat(rows)


@dataclass(frozen=True, slots=True)
class ModelRuntime:
    """How a model was asked to run.

    Attributes:
        device: where it runs.
        dtype: of its weights and caches.
        context_length: positions offered, at most what the model was made for.
        eos_token_ids: tokens that end a text.
    """

    device: torch.device
    dtype: torch.dtype
    context_length: int
    eos_token_ids: frozenset[int]


class TargetModel(ABC):
    """A causal language model over caches of its own layout.

    Attributes:
        layout: of the caches that `forward` takes.
        vocab_size: width of the logits.
        context_length: positions offered, at most what the model was made for.
        eos_token_ids: tokens that end a text.
    """

    def __init__(self, layout: KVLayout, vocab_size: int, runtime: ModelRuntime) -> None:
        self.layout = layout
        self.vocab_size = vocab_size
        self.context_length = runtime.context_length
        self.eos_token_ids = runtime.eos_token_ids

    def forward(self, inputs: Sequence[SequenceInput]) -> Tensor:
        """Run the new tokens of every sequence, writing their keys and values behind each committed prefix.

        Linear layers see all tokens as one batch; attention runs per sequence. `cache.length` is left alone.

        Returns:
            `float32[R, V]`, logits of the rows asked for, in the order of the sequences and of their `logit_rows`.
        """
        return self.forward_with_hidden(inputs, ())[0]

    @abstractmethod
    def forward_with_hidden(self, inputs: Sequence[SequenceInput], capture: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """`forward`, which also returns the residual stream at some layers (EAGLE-3 reads three).

        Args:
            inputs: as in `forward`.
            capture: layer indices in ascending order; the stream that *enters* each one is returned.

        Returns:
            Logits as in `forward`, and `float32[M, len(capture) * hidden]`, the captured streams side by side, of
            every token whether its logits are wanted or not.
        """

    @classmethod
    def load(
        cls,
        model: str,
        cache_directory: Path,
        *,
        device: str = "auto",
        dtype: str = "auto",
        context_length: int | None = None,
        threads: int | None = None,
    ) -> TargetModel:
        """Load a model by whatever computes it best on `device`.

        Args:
            model: a model pulled before, a folder in Hugging Face format, or a hub id.
            cache_directory: `Settings.cache_directory`.
            device: "cpu", "cuda", "mps", or "auto" for the best there is.
            dtype: "float32", "bfloat16", "float16", or "auto" for the fastest that the device computes well.
            context_length: positions wanted; None: the model's own.
            threads: CPU threads; None: chosen by measurement.

        Raises:
            ModelError: the model cannot be fetched or loaded, or not so.
        """
        from agentspec.engines.local.loader import load_model  # noqa: PLC0415 - it imports every implementation

        return load_model(
            model, cache_directory, device=device, dtype=dtype, context_length=context_length, threads=threads
        )

    def new_cache(self, capacity: int) -> KVCache:
        """An empty cache of this model's layout with at least `capacity` slots."""
        return KVCache(self.layout, capacity)

    @property
    def fingerprint(self) -> str:
        """Everything that the speed of a pass depends on, besides the machine."""
        return f"{type(self).__name__} {self.layout} {self.vocab_size}"

    @property
    def runs_on_caller(self) -> bool:
        """Whether a pass computes on the thread that asks for it and on nothing else."""
        return False

    def synchronise(self) -> None:
        """Wait until everything that was asked of the device is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()

    @property
    def device(self) -> torch.device:
        """Where logits and caches live."""
        return self.layout.device
