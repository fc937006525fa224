"""What is drafted in a round, and how it is laid out to be verified. Runs inside SGLang only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from agentspec.drafters.base import Budget
from agentspec.engines.sglang.drafts import confidence, may_speculate
from agentspec.engines.sglang.verdict import Stopwatch
from agentspec.engines.sglang.verify_input import Rows, host_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from agentspec.config import DraftingSettings
    from agentspec.drafters.tree import DraftTree
    from agentspec.engines.sglang.agreement import Agreement
    from agentspec.engines.sglang.cost import VerifyCost
    from agentspec.engines.sglang.device_use import DeviceUse
    from agentspec.engines.sglang.drafts import ActiveRequest, DraftBook
    from agentspec.engines.sglang.eagle_trees import EagleNodes
    from agentspec.engines.sglang.eagle_value import EagleValue
    from agentspec.engines.sglang.widths import VerifyWidths


@dataclass(frozen=True, slots=True)
class Proposal:
    """The drafts of a batch.

    Attributes:
        trees: per request; EAGLE-3's nodes are in them unless `eagle` has them.
        eagle: EAGLE-3's nodes where they stay on the device.
        watch: times their draft.
        eagle_skipped: whether EAGLE-3 did not draft because the batch was confident without it.
    """

    trees: list[DraftTree]
    eagle: EagleNodes | None = None
    watch: Stopwatch | None = None
    eagle_skipped: bool = False


class Proposals:
    """Drafts for one worker.

    Args:
        book: the requests in flight.
        draft_worker: `AgentspecDraftWorker`, or None without an EAGLE-3 head.
        agreement: with the other ranks.
        cost: of verify steps.
        eagle_value: when EAGLE-3 is worth its time.
        device_use: what stays on the device.
        drafting: bounds of the trees.
        context_length: of the target.
        device: of the target.
    """

    def __init__(
        self,
        book: DraftBook,
        draft_worker: Any,
        *,
        agreement: Agreement,
        cost: VerifyCost,
        eagle_value: EagleValue,
        device_use: DeviceUse,
        drafting: DraftingSettings,
        context_length: int,
        device: str,
    ) -> None:
        self._book = book
        self._draft_worker = draft_worker
        self._agreement = agreement
        self._cost = cost
        self._eagle_value = eagle_value
        self._device_use = device_use
        self._drafting = drafting
        self._context_length = context_length
        self._device = device

    def of(
        self, batch: Any, active: Sequence[ActiveRequest], lengths: NDArray[np.int64], widths: VerifyWidths
    ) -> Proposal:
        """Draft a tree for every request of a batch, the same ones on every rank.

        Args:
            batch: the scheduler's.
            active: what is known of its requests.
            lengths: `int64[B]`, committed tokens before the roots.
            widths: that a verify step may have.
        """
        budgets = [
            self._budget(request, one, int(length), len(active), widths)
            for request, one, length in zip(batch.reqs, active, lengths, strict=True)
        ]
        proposal = self._draft(batch, active, budgets)
        return replace(proposal, trees=self._agreement.on(proposal.trees))

    def rows(
        self,
        proposal: Proposal,
        batch: Any,
        roots: NDArray[np.int64],
        lengths: NDArray[np.int64],
        widths: VerifyWidths,
    ) -> tuple[Rows, Callable[[], list[NDArray[np.uint8]]]]:
        """What is verified, at the narrowest width that holds it.

        Args:
            proposal: of `of`.
            batch: the scheduler's; its lengths and last tokens are on the device.
            roots: `int64[B]`, the last committed tokens.
            lengths: as for `of`.
            widths: likewise.

        Returns:
            The rows, and what gives the sources of the nodes among them, by request.
        """
        largest = max(len(tree) for tree in proposal.trees)
        if proposal.eagle is None:
            width, accepts = widths.of(largest), self._device_use.accepts
            rows = host_rows(proposal.trees, roots, lengths, width, self._device, with_parents=accepts)
            return rows, lambda: [tree.source for tree in proposal.trees]
        from agentspec.engines.sglang.device_path import merge

        width = widths.of(min(largest + self._draft_worker.drafted_nodes, widths.largest - 1))
        merged = merge(proposal.trees, proposal.eagle, batch.spec_info.bonus_tokens, batch.seq_lens, width)
        return merged.rows, merged.sources

    def _draft(self, batch: Any, active: Sequence[ActiveRequest], budgets: Sequence[Budget]) -> Proposal:
        trees = [self._book.propose(one, budget, None) for one, budget in zip(active, budgets, strict=True)]
        wanted = [budget.max_nodes > 0 for budget in budgets]
        draft_worker = self._draft_worker
        if draft_worker is None or not any(wanted):
            return Proposal(trees)
        unsure = [1.0 - confidence(tree) for tree, asks in zip(trees, wanted, strict=True) if asks]
        if not self._agreement.on(self._eagle_value.worth(unsure, len(active))):
            return Proposal(trees, eagle_skipped=True)
        hit_rate = self._eagle_value.hit_rate
        if self._device_use.merges(batch, budgets, draft_worker.speculative_num_steps, alone=self._agreement.alone):
            watch = Stopwatch(self._device)
            nodes = draft_worker.draft_nodes(batch, hit_rate)
            watch.stop()
            return Proposal(trees, eagle=nodes, watch=watch)
        started = perf_counter()
        drafted = draft_worker.draft_trees(batch, hit_rate)
        merged = [
            self._book.propose(one, budget, extra) for one, budget, extra in zip(active, budgets, drafted, strict=True)
        ]
        self._eagle_value.drafted(perf_counter() - started)
        return Proposal(merged)

    def _budget(self, request: Any, active: ActiveRequest, length: int, batch: int, widths: VerifyWidths) -> Budget:
        """Bounds of a request's tree: its room, what it may still generate, and what a step costs."""
        remaining = request.sampling_params.max_new_tokens - len(active.output)
        room = self._context_length - length - 1
        nodes = min(widths.largest - 1, self._drafting.max_nodes)
        deepest = min(remaining - 1, room, nodes, self._drafting.max_depth)
        if deepest < 1 or request.finished() or not may_speculate(request, active.binding):
            return Budget(max_nodes=0, max_depth=0)
        return Budget(
            max_nodes=nodes,
            max_depth=deepest,
            min_path_prob=self._drafting.min_path_prob,
            cost=self._cost.curve(widths.of_nodes()[: nodes + 1], batch),
        )
