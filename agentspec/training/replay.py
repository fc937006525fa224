"""Tokens per verify step of a head on recorded text: greedy verification accepts what the target then wrote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from agentspec.drafters.base import Budget, DraftRequest
from agentspec.drafters.fused_drafter import FusedDrafter
from agentspec.drafters.tree_drafter import TreeDrafter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentspec.drafters.eagle3.drafter import Eagle3Drafter
    from agentspec.training.rollout import Features


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What a head alone reaches.

    Attributes:
        tokens: of the target's output.
        steps: verify steps that emitted them, the bonus token of each counted.
        drafted: nodes verified.
        reached: per depth of the draft, steps that accepted at least that many drafted tokens.
    """

    tokens: int
    steps: int
    drafted: int
    reached: tuple[int, ...]

    @property
    def tokens_per_step(self) -> float:
        """Tokens emitted by a verify step on average; plain decoding has 1."""
        return self.tokens / max(1, self.steps)


def replay_head(drafter: Eagle3Drafter, sequences: Iterable[Features], budget: Budget) -> ReplayResult:
    """Replay recorded outputs with the head as the only drafter.

    Args:
        drafter: of the head.
        sequences: recorded; the first token of each output is prefill's, as in serving.
        budget: bounds of a step's tree.
    """
    alone = FusedDrafter(TreeDrafter(), drafter, alone=True)
    tokens = steps = drafted = 0
    reached = np.zeros(budget.max_depth, np.int64)
    for one in sequences:
        text = one.tokens.numpy()
        session = alone.begin(DraftRequest(prompt=text[: one.prompt_length]))
        session.read(0, one.hidden[: one.prompt_length])
        at = one.prompt_length
        session.commit(text[at : at + 1])
        while at + 1 < len(text):
            tree = session.propose(budget)
            rest = text[at + 1 :]
            accepted = len(tree.accepted_path(rest.tolist()))
            emitted = rest[: accepted + 1]
            session.read(at, one.hidden[at : at + accepted + 1])
            session.commit(emitted)
            at += len(emitted)
            tokens, steps, drafted = tokens + len(emitted), steps + 1, drafted + len(tree)
            reached[:accepted] += 1
    return ReplayResult(tokens, steps, drafted, tuple(reached[reached > 0].tolist()))
