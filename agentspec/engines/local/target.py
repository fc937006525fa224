"""The target of the local engine: model, tokenizer and measured costs, loaded together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from agentspec.engines.local.checkpoint import model_folder
from agentspec.engines.local.cost import cost_curve
from agentspec.engines.local.draft_head import load_head
from agentspec.engines.local.hardware import available_memory
from agentspec.engines.local.model import TargetModel
from agentspec.engines.local.tokenizer import Tokenizer

if TYPE_CHECKING:
    from agentspec.config import Settings
    from agentspec.drafters.eagle3.drafter import Eagle3Drafter
    from agentspec.engines.local.kv_cache import KVLayout
    from agentspec.engines.local.speculation import CostModel

_KV_MEMORY_SHARE = 0.5
"""Part of the free memory that keys and values may take by default."""


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
