"""SGLang's EAGLE-3 draft as a part of what is verified. Runs inside SGLang only."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.layers.moe.utils import speculative_moe_a2a_backend_context, speculative_moe_backend_context
from sglang.srt.runtime_context import get_spec
from sglang.srt.speculative import eagle_worker_v2
from sglang.srt.speculative.spec_utils import draft_tp_context

from agentspec.config import Settings
from agentspec.engines.sglang.eagle_trees import EagleNodes, eagle_nodes, eagle_trees

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentspec.drafters.tree import DraftTree


class AgentspecDraftWorker(eagle_worker_v2.EagleDraftWorker):  # type: ignore[misc]
    """SGLang's EAGLE-3 draft, with a tree of its own size and with the probabilities of its nodes.

    SGLang drafts as many nodes as it verifies; here EAGLE-3's tree is only a part of what is verified. The
    probabilities travel with the draft's results, as SGLang's draft distributions would, so that they are right also
    where the draft is the replay of a CUDA graph.
    """

    def __init__(self, server_args: Any, *args: Any, **kwargs: Any) -> None:
        spec = get_spec()
        topk, steps = spec.speculative_eagle_topk, spec.speculative_num_steps
        candidates = topk + (steps - 1) * topk**2
        self._eagle_nodes: int = steps + 1 if topk == 1 else min(Settings.load().sglang.draft_nodes, candidates + 1)
        self.speculative_num_draft_tokens: int
        super().__init__(server_args, *args, **kwargs)

    @property
    def drafted_nodes(self) -> int:
        """Nodes of a tree, the root not counted."""
        return self._eagle_nodes - 1

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """SGLang's context of whatever the draft model runs."""
        with (
            draft_tp_context(self.parallel_layout),
            speculative_moe_backend_context(),
            speculative_moe_a2a_backend_context(),
        ):
            yield

    def draft_trees(self, batch: Any, chain_probability: float) -> list[DraftTree]:
        """Run the draft and return its tree for every request."""
        with self.in_use(), self._eagle_sized():
            verify_input = self.draft(batch)
        return eagle_trees(verify_input, len(batch.reqs), verify_input.draft_probs, chain_probability)

    def draft_nodes(self, batch: Any, chain_probability: float) -> EagleNodes:
        """Run the draft and leave its trees on the device."""
        with self.in_use(), self._eagle_sized():
            verify_input, parent_list, selected = self.draft(batch, with_topology=True)
        tokens = verify_input.draft_token.view(len(batch.reqs), -1)[:, 1:]
        return eagle_nodes(
            tokens,
            parent_list,
            selected,
            branches=self.topk,
            scores=verify_input.draft_probs,
            chain=chain_probability,
        )

    def draft_forward(self, forward_batch: Any) -> Any:
        """The draft steps; in place of draft distributions, the path probabilities of the chosen nodes `[B, n - 1]`."""
        scores: list[torch.Tensor] = []
        with self._eagle_sized(), _scores_kept(scores):
            parent_list, selected, tokens, _ = super().draft_forward(forward_batch)
        return parent_list, selected, tokens, scores[0] if scores else None

    def _rebuild_topk1_chain_buffers(self) -> None:
        with self._eagle_sized():
            super()._rebuild_topk1_chain_buffers()

    @contextlib.contextmanager
    def _eagle_sized(self) -> Iterator[None]:
        width = self.speculative_num_draft_tokens
        self.speculative_num_draft_tokens = self._eagle_nodes
        try:
            yield
        finally:
            self.speculative_num_draft_tokens = width


@contextlib.contextmanager
def _scores_kept(scores: list[torch.Tensor]) -> Iterator[None]:
    """While EAGLE's candidates are ranked, note the scores of those that are kept."""
    organize = eagle_worker_v2.organize_draft_results

    def keep_scores(score_list: Any, tokens: Any, parents: Any, nodes: int) -> Any:
        result = organize(score_list, tokens, parents, nodes)
        scores.append(torch.cat(score_list, dim=1).flatten(1).gather(1, result[1]))
        return result

    eagle_worker_v2.organize_draft_results = keep_scores
    try:
        yield
    finally:
        eagle_worker_v2.organize_draft_results = organize
