"""The optimiser's loop: deterministic, resumable at any instant, measured on held-out text as it goes."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from agentspec.errors import InvalidRequestError
from agentspec.training.batches import batches, epoch_batches
from agentspec.training.unroll import DraftVocabulary, TrainingBatch, training_time_test

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

    from agentspec.drafters.eagle3.head import Eagle3Head
    from agentspec.training.features import FeatureStore


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a head is trained.

    Attributes:
        steps: optimiser steps.
        batch_tokens: most tokens of a step, its padding included.
        test_time_steps: tokens drafted ahead from every position.
        single_share: share of the steps, from the first on, that draft one token ahead only: they cost a fraction
            and teach most of what the later ones build on.
        step_decay: weight of each further drafted token in the loss, relative to the one before.
        learning_rate: of AdamW, at its peak.
        warmup: steps of linear rise.
        decay_from: share of the steps after which the rate falls linearly to zero.
        clip: largest norm of the gradient.
        evaluate_every: steps between two measurements on held-out text.
        evaluate_on: held-out sequences measured each time, spread evenly; all of them after the last step.
        checkpoint_seconds: between two checkpoints.
        seed: of the order of the data.
    """

    steps: int = 3000
    batch_tokens: int = 2048
    test_time_steps: int = 3
    single_share: float = 0.4
    step_decay: float = 0.8
    learning_rate: float = 1.5e-3
    warmup: int = 50
    decay_from: float = 0.4
    clip: float = 1.0
    evaluate_every: int = 100
    evaluate_on: int = 32
    checkpoint_seconds: float = 60.0
    seed: int = 0

    def ahead(self, step: int) -> int:
        """Tokens drafted ahead in optimiser step `step`."""
        return 1 if step < self.single_share * self.steps else self.test_time_steps

    def rate(self, step: int) -> float:
        """Learning rate of optimiser step `step`."""
        rise = min(1.0, (step + 1) / self.warmup)
        fall = (self.steps - step) / (self.steps * (1 - self.decay_from))
        return self.learning_rate * min(rise, fall)


@dataclass(frozen=True, slots=True)
class Progress:
    """One line of the training log.

    Attributes:
        step: optimiser steps done.
        loss: of the step, over all drafted tokens.
        acceptance: per drafted token, share of held-out positions at which the head's best token is the target's,
            given that all tokens before it were right; None where it was not measured.
    """

    step: int
    loss: float
    acceptance: tuple[float, ...] | None = None


class Trainer:
    """Trains a head in a folder that holds everything needed to go on.

    Args:
        head: initialised; a checkpoint in `folder` replaces its weights.
        embedding: `[V, hidden]`, the target's.
        train: sequences to learn from.
        held_out: sequences to measure on.
        recipe: how.
        folder: of the checkpoint and the log.

    Raises:
        InvalidRequestError: the folder holds a run with another recipe.
    """

    def __init__(
        self,
        head: Eagle3Head,
        embedding: Tensor,
        train: FeatureStore,
        held_out: FeatureStore,
        *,
        recipe: Recipe,
        folder: Path,
    ) -> None:
        self.head = head
        self.step = 0
        self._embedding = embedding
        self._train = train
        self._held_out = held_out
        self._recipe = recipe
        self._vocabulary = DraftVocabulary(head.draft_to_target, head.config.vocab_size)
        self._optimizer = torch.optim.AdamW(head.parameters(), betas=(0.9, 0.95), weight_decay=0.01, fused=True)
        self._checkpoint = folder / "checkpoint.pt"
        self._log = folder / "log.jsonl"
        self._history: list[Progress] = []
        self._order: list[list[int]] = []
        self._epochs = 0
        folder.mkdir(parents=True, exist_ok=True)
        if self._checkpoint.exists():
            self._resume()

    def run(self, report: Callable[[Progress], None]) -> list[Progress]:
        """Train until the recipe's last step; the whole log, what earlier runs wrote included."""
        saved = time.monotonic()
        while self.step < self._recipe.steps:
            loss = self._advance()
            measured = self.step % self._recipe.evaluate_every == 0 or self.step == self._recipe.steps
            progress = Progress(self.step, loss, self.measure() if measured else None)
            self._history.append(progress)
            report(progress)
            if time.monotonic() - saved > self._recipe.checkpoint_seconds or self.step == self._recipe.steps:
                self._save()
                saved = time.monotonic()
        return self._history

    @torch.no_grad()
    def measure(self) -> tuple[float, ...]:
        """Held-out acceptance of each drafted token, given the ones before it."""
        counts = torch.zeros(self._recipe.test_time_steps, 2, dtype=torch.int64)
        available = len(self._held_out)
        count = available if self.step == self._recipe.steps else min(self._recipe.evaluate_on, available)
        spread = [number * available // count for number in range(count)]
        for chosen in batches(self._held_out.lengths, spread, self._recipe.batch_tokens):
            batch = TrainingBatch.of([self._held_out[index] for index in chosen])
            with torch.autocast("cpu", torch.bfloat16):
                results = training_time_test(
                    self.head, self._embedding, self._vocabulary, batch, self._recipe.test_time_steps
                )
            counts += torch.stack([torch.stack([result.hits, result.count]) for result in results])
        return tuple((counts[:, 0] / counts[:, 1].clamp(min=1)).tolist())

    def _advance(self) -> float:
        recipe = self._recipe
        batch = TrainingBatch.of([self._train[index] for index in self._chosen(self.step)])
        ahead = recipe.ahead(self.step)
        with torch.autocast("cpu", torch.bfloat16):
            results = training_time_test(self.head, self._embedding, self._vocabulary, batch, ahead)
        shares = [recipe.step_decay**step for step in range(ahead)]
        losses = [share * result.loss for share, result in zip(shares, results, strict=True)]
        loss = torch.stack(losses).sum() / sum(shares)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), recipe.clip)
        for group in self._optimizer.param_groups:
            group["lr"] = recipe.rate(self.step)
        self._optimizer.step()
        self.step += 1
        return float(loss.detach())

    def _chosen(self, step: int) -> list[int]:
        """Sequences of optimiser step `step`."""
        # Epochs have almost, not exactly, equally many batches; counting from the start keeps a resumed run on track.
        while len(self._order) <= step:
            self._order += epoch_batches(
                self._train.lengths, self._recipe.batch_tokens, self._recipe.seed * 100_003 + self._epochs
            )
            self._epochs += 1
        return self._order[step]

    def _save(self) -> None:
        state: dict[str, Any] = {
            "recipe": asdict(self._recipe),
            "step": self.step,
            "head": self.head.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "history": [asdict(line) for line in self._history],
        }
        partial = self._checkpoint.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(self._checkpoint)
        self._log.write_text("".join(json.dumps(asdict(line)) + "\n" for line in self._history), encoding="utf-8")

    def _resume(self) -> None:
        state = torch.load(self._checkpoint, weights_only=True)
        if state["recipe"] != asdict(self._recipe):
            differing = [key for key, value in asdict(self._recipe).items() if state["recipe"].get(key) != value]
            raise InvalidRequestError(
                f"{self._checkpoint} is of a run with another {', '.join(differing)}; go on with the same values, or "
                "train into another folder"
            )
        self.head.load_state_dict(state["head"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
        self._history = [
            Progress(line["step"], line["loss"], line["acceptance"] and tuple(line["acceptance"]))
            for line in state["history"]
        ]
