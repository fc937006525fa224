"""A loaded head with its target's embedding: makes drafting sessions."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import torch

from agentspec.drafters.eagle3.checkpoint import load_head
from agentspec.drafters.eagle3.config import CAPTURED_LAYERS, default_capture
from agentspec.drafters.eagle3.native_runner import NativeHead, NativeRunner
from agentspec.drafters.eagle3.runner import TorchRunner
from agentspec.drafters.eagle3.session import Eagle3Session, Growth
from agentspec.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

    from agentspec.drafters.eagle3.head import Eagle3Head

SHIPPED = Path(__file__).parent.parent / "heads"
"""Heads that come with the package, one folder per model name."""

TIMED_PASSES = 8


class Eagle3Drafter:
    """Makes `Eagle3Session`s. Sessions share its weights, which nobody changes.

    Args:
        head: the head.
        embedding: `[V, hidden]`, the target's.
        layers: of the target.
        growth: bounds of the trees.
        threads: CPU threads for the native kernels; None: torch computes.
        exact: see `NativeHead`.

    Attributes:
        capture: layers of the target whose incoming stream the head reads, ascending.
    """

    def __init__(
        self,
        head: Eagle3Head,
        embedding: Tensor,
        layers: int,
        growth: Growth | None = None,
        threads: int | None = None,
        *,
        exact: bool = False,
    ) -> None:
        self.capture = head.config.capture or default_capture(layers)
        low, middle, high = self.capture
        if not 0 <= low < middle < high < layers:
            raise ModelError(
                f"the draft head reads the target's layers {list(self.capture)}, not three of this model's {layers} in "
                "order; it was made for another model"
            )
        self._head = head
        self._embedding = embedding.to(head.fc.weight.dtype)
        self._growth = growth or Growth()
        self._native: NativeHead | None = None
        if threads is not None and NativeHead.computes(head.config, self._embedding):
            self._native = NativeHead(head, self._embedding, threads, exact=exact)

    @classmethod
    def load(
        cls,
        folder: Path,
        embedding: Tensor,
        layers: int,
        dtype: torch.dtype,
        threads: int | None = None,
        *,
        exact: bool = False,
    ) -> Self:
        """Load the head in `folder` for a target.

        Args:
            folder: with `config.json` and `model.safetensors`.
            embedding: `[V, hidden]`, the target's.
            layers: of the target.
            dtype: to compute in.
            threads: CPU threads for the native kernels; None: torch computes.
            exact: see `NativeHead`.

        Raises:
            ModelError: see `load_head`; or the head reads layers that the target does not have.
        """
        vocab_size, hidden = embedding.shape
        head = load_head(folder, hidden=hidden, vocab_size=vocab_size, dtype=dtype)
        return cls(head, embedding, layers, threads=threads, exact=exact)

    def begin(self) -> Eagle3Session:
        """Start a text."""
        slots = Eagle3Session.slots_for(self._growth)
        if self._native is None:
            return Eagle3Session(TorchRunner(self._head, self._embedding, slots), self._growth)
        return Eagle3Session(NativeRunner(self._native, slots), self._growth)

    def pass_seconds(self) -> float:
        """What a pass of the head over one token takes here: the least of a few, since other work only adds time."""
        session = self.begin()
        features = torch.zeros(1, CAPTURED_LAYERS * self._embedding.shape[1], device=self._embedding.device)
        best = float("inf")
        for _ in range(TIMED_PASSES):
            started = time.perf_counter()
            session.read(features, torch.zeros(1, dtype=torch.int64))
            session.draft(level_gain=float("inf"))  # reads the result, so that it waits for the device
            best = min(best, time.perf_counter() - started)
        return best


def shipped_head(model: str) -> Path | None:
    """The folder of the head that comes with the package for the pulled model `model`, if one does."""
    folder = SHIPPED / model
    # A model named by its path is none that a head is shipped for, though an absolute path would stand for itself here.
    shipped = folder.parent == SHIPPED and (folder / "model.safetensors").is_file()
    return folder if shipped else None
