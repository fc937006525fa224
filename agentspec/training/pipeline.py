"""From a target to a head on disk: choose data, record the target, train, write the head and its card."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Protocol

import torch
from transformers import AutoConfig

from agentspec.drafters.base import Budget
from agentspec.drafters.eagle3.checkpoint import load_head, save_head
from agentspec.drafters.eagle3.config import HeadConfig, default_capture
from agentspec.drafters.eagle3.drafter import Eagle3Drafter
from agentspec.engines.local.architecture import Architecture
from agentspec.engines.local.checkpoint import Checkpoint, model_folder
from agentspec.engines.local.model import TargetModel
from agentspec.engines.local.tokenizer import Tokenizer
from agentspec.engines.local.weights import OuterWeights
from agentspec.errors import ModelError
from agentspec.training.data import choose_data
from agentspec.training.features import FeatureStore, record
from agentspec.training.initialise import frequent_tokens, initial_head
from agentspec.training.model_card import model_card
from agentspec.training.replay import replay_head
from agentspec.training.rollout import Rollout
from agentspec.training.trainer import Trainer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from agentspec.drafters.eagle3.head import Eagle3Head
    from agentspec.training.data import DataPlan, DataSet
    from agentspec.training.replay import ReplayResult
    from agentspec.training.trainer import Progress, Recipe

FEWEST_LAYERS = 7
"""Below, the low, middle and high layer that a head reads would not be three."""

REPLAYED = 24
"""Held-out sequences of each sort that are replayed for the card, spread evenly over its lengths."""

SORTS = {"held_out": "conversations", "held_out_documents": "documents", "held_out_texts": "text files"}
"""Held-out data by the folder of its shards."""

REPLAY_BUDGET = Budget(max_nodes=16, max_depth=8, min_path_prob=0.02)
"""A tree as small as a CPU verifies."""

DOCUMENTS_SHARE = 0.7
"""Share of the time for recording after which no further document is recorded, so that conversations get the rest."""

SHARD_SEQUENCES = 96
"""Sequences recorded together; enough of them that the target's weights are read once for many tokens."""


class Reporter(Protocol):
    """Told what is going on."""

    def recording(self, part: str, done: int, total: int) -> None:
        """Shards of a part of the data that are on disk."""

    def training(self, progress: Progress, total: int) -> None:
        """A step of the optimiser is done."""


@dataclass(frozen=True, slots=True)
class HeadPlan:
    """What to train, on what, and how.

    Attributes:
        model: the target: a pulled model, a folder, or a hub id.
        cache_directory: `Settings.cache_directory`.
        work: folder of everything in between; a run that was stopped goes on from it.
        output: folder of the head.
        data: what to train on.
        recipe: how to train.
        max_new: most tokens the target answers to a prompt.
        draft_vocab_size: tokens the head can propose; where one is trained further, its own count.
        start: folder of a head to train further; None: begin with the target's last layer.
        record_seconds: no further data is recorded after that time; all of the plan's otherwise.
        threads: CPU threads of the target; None: chosen by measurement.
    """

    model: str
    cache_directory: Path
    work: Path
    output: Path
    data: DataPlan
    recipe: Recipe
    max_new: int = 192
    draft_vocab_size: int = 4864
    start: Path | None = None
    record_seconds: float = math.inf
    threads: int | None = None


def train_head(plan: HeadPlan, reporter: Reporter) -> Path:
    """Make a head. Stop it whenever you like: called again with the same plan, it goes on.

    Args:
        plan: what to make.
        reporter: told what is going on.

    Returns:
        The folder of the head.

    Raises:
        ModelError: the target cannot be loaded.
        InvalidRequestError: there is too little data, or the work folder belongs to another plan.
    """
    folder = model_folder(plan.model, plan.cache_directory)
    config = AutoConfig.from_pretrained(folder)
    if Architecture.of(config) is None or config.num_hidden_layers < FEWEST_LAYERS:
        raise ModelError(
            f"no head for {plan.model} can be trained here: that takes a Llama, Qwen2 or Qwen3 model of at least "
            f"{FEWEST_LAYERS} layers; train one with SpecForge, whose heads load here as they are"
        )
    capture: tuple[int, ...] = default_capture(config.num_hidden_layers)
    if plan.start is not None:
        capture = HeadConfig.read(plan.start).capture or capture
    data = choose_data(plan.data, Tokenizer.load(folder), plan.work / "data.json")
    train, held_out = _record(plan, data, capture, reporter)
    head = _initial_head(plan, folder, capture, train, config.vocab_size)
    embedding = OuterWeights.read(Checkpoint(folder).fetch).embedding
    trainer = Trainer(head, embedding, train, held_out, recipe=plan.recipe, folder=plan.work)
    history = trainer.run(lambda progress: reporter.training(progress, plan.recipe.steps))
    save_head(head, plan.output)
    drafter = Eagle3Drafter.load(plan.output, embedding, config.num_hidden_layers, torch.float32)
    made = replace(plan, draft_vocab_size=head.config.draft_vocab_size)
    card = model_card(made, data, train, history, _replay(plan.work, drafter))
    (plan.output / "README.md").write_text(card, encoding="utf-8")
    return plan.output


def _record(
    plan: HeadPlan, data: DataSet, capture: tuple[int, ...], reporter: Reporter
) -> tuple[FeatureStore, FeatureStore]:
    """Training and held-out sequences; the list of shards is fixed once all are recorded."""
    listing = plan.work / "shards.json"
    if not listing.exists():
        model = TargetModel.load(plan.model, plan.cache_directory, dtype="bfloat16", threads=plan.threads)
        rollout = Rollout(model, capture)
        began = time.monotonic()

        def part(name: str, sequences: list[list[int]], max_new: int, share: float = 1.0) -> list[str]:
            files = record(
                rollout,
                sequences,
                plan.work / name,
                shard_size=SHARD_SEQUENCES,
                max_new=max_new,
                deadline=began + share * plan.record_seconds,
                report=lambda done, total: reporter.recording(name, done, total),
            )
            return [str(file.relative_to(plan.work)) for file in files]

        shards = {
            "held_out": part("held_out", data.held_out, plan.max_new)
            + part("held_out_documents", data.held_out_documents, plan.max_new)
            + part("held_out_texts", data.held_out_texts, 0),
            "train": part("documents", data.documents, plan.max_new, DOCUMENTS_SHARE)
            + part("train", data.train, plan.max_new)
            + part("texts", data.texts, 0),
        }
        listing.write_text(json.dumps(shards), encoding="utf-8")
    shards = json.loads(listing.read_text(encoding="utf-8"))
    return _store(plan.work, shards["train"]), _store(plan.work, shards["held_out"])


def _replay(work: Path, drafter: Eagle3Drafter) -> dict[str, ReplayResult]:
    """What the head alone reaches on each sort of held-out data."""
    names = json.loads((work / "shards.json").read_text(encoding="utf-8"))["held_out"]
    results = {}
    for folder, sort in SORTS.items():
        sequences = _store(work, [name for name in names if PurePath(name).parent.name == folder])
        count = min(REPLAYED, len(sequences))
        chosen = [sequences[number * len(sequences) // count] for number in range(count)]
        if chosen:
            results[sort] = replay_head(drafter, chosen, REPLAY_BUDGET)
    return results


def _store(work: Path, names: Sequence[str]) -> FeatureStore:
    return FeatureStore([work / name for name in names])


def _initial_head(
    plan: HeadPlan, folder: Path, capture: tuple[int, ...], train: FeatureStore, vocab_size: int
) -> Eagle3Head:
    if plan.start is not None:
        hidden = train[0].hidden.shape[1] // len(capture)
        return load_head(plan.start, hidden=hidden, vocab_size=vocab_size, dtype=torch.float32).train().requires_grad_()
    count = min(plan.draft_vocab_size, vocab_size)
    tokens = frequent_tokens((train[index] for index in range(len(train))), vocab_size, count)
    return initial_head(folder, capture, torch.as_tensor(tokens), plan.recipe.seed)
