"""Which EAGLE-3 head a target drafts with, if any: chosen by what it promises on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from agentspec.drafters.eagle3.drafter import Eagle3Drafter, shipped_head
from agentspec.engines.local.checkpoint import Checkpoint, model_folder
from agentspec.engines.local.native_model import NativeModel
from agentspec.errors import ModelError

if TYPE_CHECKING:
    from agentspec.config import Settings
    from agentspec.engines.local.model import TargetModel
    from agentspec.engines.local.speculation import CostModel

EMBEDDING = "model.embed_tokens.weight"
"""Where Llama-like checkpoints keep the embedding, which EAGLE-3 heads share."""

TYPICAL_CONTEXT = 512
"""Committed tokens at which costs are looked up."""

WORTHWHILE = 1.1
"""Tokens per second, of plain decoding's, that a head must promise on text that no copy drafts."""


class Reach(NamedTuple):
    """What a head's trees of one size bring.

    Attributes:
        nodes: of a tree.
        passes: of the head that it takes to draw it.
        tokens: that a verify step over it emits.
    """

    nodes: int
    passes: int
    tokens: float


TYPICAL_REACH = (Reach(1, 1, 1.75), Reach(3, 2, 2.63), Reach(7, 4, 3.30), Reach(15, 5, 3.70))
"""A small head alone on held-out conversations about code; measured with the shipped one, see docs/eagle3.md."""


def expected_speedup(cost: CostModel, pass_seconds: float) -> float:
    """Tokens per second with a head, of plain decoding's, with the size of tree that suits the machine best.

    Args:
        cost: what passes of the target cost here.
        pass_seconds: what one of the head costs.
    """
    plain = cost.seconds(1, TYPICAL_CONTEXT)
    return max(
        reach.tokens * plain / (cost.seconds(1 + reach.nodes, TYPICAL_CONTEXT) + reach.passes * pass_seconds)
        for reach in TYPICAL_REACH
    )


def load_head(settings: Settings, model: TargetModel, cost: CostModel) -> Eagle3Drafter | None:
    """The EAGLE-3 head that the settings name; None where they name none, or none comes with the model.

    "auto" leaves a shipped head alone where drafting with it promises less than `WORTHWHILE`. A head that is named is
    used whatever it costs.

    Args:
        settings: all of them; `engine` matters here.
        model: the target.
        cost: what its passes cost on this machine.

    Raises:
        ModelError: the head cannot be loaded, or was made for another model.
    """
    engine = settings.engine
    automatic = engine.draft_head == "auto"
    if not engine.speculation or engine.draft_head == "none":
        return None
    folder = shipped_head(engine.model) if automatic else Path(engine.draft_head).expanduser()
    # Where even a head that took no time would not pay, none is read.
    if folder is None or (automatic and expected_speedup(cost, 0.0) < WORTHWHILE):
        return None
    embedding = Checkpoint(model_folder(engine.model, settings.cache_directory)).fetch(EMBEDDING)
    if embedding is None:
        raise ModelError(
            f"draft heads need {EMBEDDING}, which the weights of {engine.model} lack; set engine.draft_head to none"
        )
    layout = model.layout
    threads = model.threads if isinstance(model, NativeModel) else None
    head = Eagle3Drafter.load(folder, embedding.to(layout.device), layout.layers, layout.dtype, threads)
    return None if automatic and expected_speedup(cost, head.pass_seconds()) < WORTHWHILE else head
