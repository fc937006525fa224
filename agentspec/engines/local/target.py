"""The target of the local engine: model, tokenizer and measured costs, loaded together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from agentspec.drafters.eagle3.drafter import Eagle3Drafter, shipped_head
from agentspec.engines.local.checkpoint import Checkpoint, model_folder
from agentspec.engines.local.cost import cost_curve
from agentspec.engines.local.hardware import available_memory
from agentspec.engines.local.model import TargetModel
from agentspec.engines.local.native_model import NativeModel
from agentspec.engines.local.tokenizer import Tokenizer
from agentspec.errors import ModelError

if TYPE_CHECKING:
    from agentspec.config import Settings
    from agentspec.engines.local.kv_cache import KVLayout
    from agentspec.engines.local.speculation import CostModel

_KV_MEMORY_SHARE = 0.5
"""Part of the free memory that keys and values may take by default."""

TREE_ROWS = 16
"""Tokens of a verify step over a head's usual tree."""

TYPICAL_CONTEXT = 512
"""Committed tokens at which its cost is looked up."""

CHEAP_TREE = 2.0
"""Most that such a step may take, in plain steps: a head emits about that many tokens with it."""

EMBEDDING = "model.embed_tokens.weight"
"""Where Llama-like checkpoints keep the embedding, which EAGLE-3 heads share."""


@dataclass(frozen=True, slots=True)
class Target:
    """A loaded model.

    Attributes:
        name: that clients use.
        model: its forward pass.
        tokenizer: its tokenizer.
        cost: what passes cost here.
        head: an EAGLE-3 head made for it, or None.
    """

    name: str
    model: TargetModel
    tokenizer: Tokenizer
    cost: CostModel
    head: Eagle3Drafter | None = None


def load_target(settings: Settings) -> Target:
    """Load what the settings name.

    Raises:
        ModelError: it cannot be loaded.
    """
    engine = settings.engine
    model = TargetModel.load(
        engine.model,
        settings.cache_directory,
        device=engine.device,
        dtype=engine.dtype,
        context_length=engine.context_length,
        threads=engine.threads,
    )
    tokenizer = Tokenizer.load(model_folder(engine.model, settings.cache_directory))
    cost = cost_curve(model, settings.cache_directory)
    head = load_head(settings, model, cost)
    return Target(engine.served_name or Path(engine.model).name, model, tokenizer, cost, head)


def load_head(settings: Settings, model: TargetModel, cost: CostModel) -> Eagle3Drafter | None:
    """The EAGLE-3 head that the settings name; None where they name none, or none comes with the model.

    "auto" leaves a shipped head alone where verifying its many unsure drafts costs more than they save. A head that is
    named is used whatever it costs.

    Args:
        settings: all of them; `engine` matters here.
        model: the target.
        cost: what its passes cost on this machine.

    Raises:
        ModelError: the head cannot be loaded, or was made for another model.
    """
    engine = settings.engine
    if not engine.speculation or engine.draft_head == "none":
        return None
    if engine.draft_head == "auto":
        folder = shipped_head(engine.model)
        tree, plain = cost.seconds(TREE_ROWS, TYPICAL_CONTEXT), cost.seconds(1, TYPICAL_CONTEXT)
        if folder is None or tree > CHEAP_TREE * plain:
            return None
    else:
        folder = Path(engine.draft_head).expanduser()
    embedding = Checkpoint(model_folder(engine.model, settings.cache_directory)).fetch(EMBEDDING)
    if embedding is None:
        raise ModelError(
            f"draft heads need {EMBEDDING}, which the weights of {engine.model} lack; set engine.draft_head to none"
        )
    layout = model.layout
    threads = model.threads if isinstance(model, NativeModel) else None
    return Eagle3Drafter.load(folder, embedding.to(layout.device), layout.layers, layout.dtype, threads)


def kv_slots(layout: KVLayout, wanted: int | None, useful: int) -> int:
    """KV slots of an engine.

    Args:
        layout: of the model.
        wanted: the setting; None: as many as are useful and fit into half of the free memory.
        useful: more than this can never be used.
    """
    if wanted is not None:
        return wanted
    if layout.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(layout.device)
    else:
        free = available_memory()
    return min(useful, int(_KV_MEMORY_SHARE * free) // layout.bytes_per_token)
