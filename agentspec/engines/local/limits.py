"""Bounds of what the scheduler runs at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may run at once, and how large drafts may be.

    Attributes:
        max_running: requests admitted at once.
        max_nodes: most drafted nodes of one choice in one step; its cache has room for them.
        max_depth: deepest draft.
        min_path_prob: see `agentspec.drafters.base.Budget`.
    """

    max_running: int
    max_nodes: int
    max_depth: int
    min_path_prob: float

    def slots(self, prompt: int, max_new: int) -> int:
        """KV slots that one choice needs at most."""
        return prompt + max_new + self.max_nodes
