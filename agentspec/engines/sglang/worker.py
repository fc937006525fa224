"""The worker of the algorithm AGENTSPEC: SGLang's EAGLE worker with our trees. Runs inside SGLang only.

A decode round is: bring every request's drafting state up to date; propose trees without a model; run the EAGLE-3
draft where the batch is not confident without it and merge its nodes; lay the trees out at the narrowest width that
holds them; verify; let EAGLE-3's cache follow what was accepted. Without an EAGLE-3 head there is no draft worker,
and the rest is the same.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sglang.srt.layers.moe.utils import speculative_moe_a2a_backend_context, speculative_moe_backend_context
from sglang.srt.runtime_context import get_spec
from sglang.srt.sampling.sampling_params import TOP_K_ALL
from sglang.srt.speculative import eagle_worker_v2
from sglang.srt.speculative.eagle_info import EagleDraftInput
from sglang.srt.speculative.eagle_worker_common import run_eagle_verify
from sglang.srt.speculative.spec_utils import draft_tp_context

from agentspec.config import Settings
from agentspec.drafters.base import Budget
from agentspec.drafters.tree import DraftTree, Source
from agentspec.drafters.tree_drafter import TreeDrafter
from agentspec.engines.sglang import receipts
from agentspec.engines.sglang.agreement import Agreement
from agentspec.engines.sglang.cost import VerifyCost
from agentspec.engines.sglang.drafts import ActiveRequest, DraftBook, Round, confidence, may_speculate
from agentspec.engines.sglang.eagle_value import EagleValue
from agentspec.engines.sglang.graphs import GraphStates
from agentspec.engines.sglang.penalties import PathPenalties, PenaltyRule
from agentspec.engines.sglang.snapshots import SnapshotFollower
from agentspec.engines.sglang.target_tokenizer import TargetTokenizer
from agentspec.engines.sglang.verify_input import CHAIN, accepted_sources, build_verify_input, eagle_trees
from agentspec.engines.sglang.widths import VerifyWidths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

logger = logging.getLogger(__name__)


class AgentspecDraftWorker(eagle_worker_v2.EagleDraftWorker):  # type: ignore[misc]
    """SGLang's EAGLE-3 draft, with a tree of its own size and with the probabilities of its nodes.

    SGLang drafts as many nodes as it verifies; here EAGLE-3's tree is only a part of what is verified.
    """

    def __init__(self, server_args: Any, *args: Any, **kwargs: Any) -> None:
        spec = get_spec()
        topk, steps = spec.speculative_eagle_topk, spec.speculative_num_steps
        candidates = topk + (steps - 1) * topk**2
        self._eagle_nodes = steps + 1 if topk == 1 else min(Settings.load().sglang.draft_nodes, candidates + 1)
        self._scores: torch.Tensor | None = None
        self.speculative_num_draft_tokens: int
        super().__init__(server_args, *args, **kwargs)

    def draft_trees(self, batch: Any, chain_probability: float) -> list[DraftTree]:
        """Run the draft and return its tree for every request."""
        with self._eagle_sized():
            verify_input = self.draft(batch)
        return eagle_trees(verify_input, len(batch.reqs), self._scores, chain_probability)

    def draft_forward(self, forward_batch: Any) -> Any:
        """The draft steps; keeps the path probabilities of the chosen nodes, `[B, n - 1]`."""
        with self._eagle_sized(), self._scores_kept():
            return super().draft_forward(forward_batch)

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
    def _scores_kept(self) -> Iterator[None]:
        """While EAGLE's candidates are ranked, note the scores of those that are kept."""
        organize = eagle_worker_v2.organize_draft_results

        def keep_scores(scores: Any, tokens: Any, parents: Any, nodes: int) -> Any:
            result = organize(scores, tokens, parents, nodes)
            self._scores = torch.cat(scores, dim=1).flatten(1).gather(1, result[1])
            return result

        eagle_worker_v2.organize_draft_results = keep_scores
        try:
            yield
        finally:
            eagle_worker_v2.organize_draft_results = organize


@dataclass(slots=True)
class _Verdict:
    """A verify step whose outcome may still be on the device."""

    active: list[ActiveRequest]
    trees: list[DraftTree]
    tokens: torch.Tensor
    counts: torch.Tensor
    accepted: torch.Tensor
    width: int
    eagle_skipped: bool
    draft_seconds: float
    started: float


class AgentspecWorker(eagle_worker_v2.EAGLEWorkerV2):  # type: ignore[misc]
    """See the module's docstring. Arguments are those of SGLang's workers."""

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
        settings = Settings.load()
        with_head = get_spec().speculative_draft_model_path is not None
        draft_worker_class: Callable[..., Any] = AgentspecDraftWorker if with_head else lambda *_: None
        self.speculative_num_draft_tokens: int
        with _replaced(eagle_worker_v2, "EagleDraftWorker", draft_worker_class):
            super().__init__(server_args, gpu_id, nccl_port, target_worker)
        config = target_worker.model_runner.model_config
        self._vocabulary_size = config.vocab_size
        self._context_length = config.context_len
        self._drafting = settings.drafting
        self._model_free = settings.sglang.model_free or not with_head
        self._captured = settings.sglang.verify_widths
        self._widths = VerifyWidths(self.speculative_num_draft_tokens)
        self._graphs: GraphStates | None = None
        self._agreement = Agreement()
        self._cost = VerifyCost()
        self._eagle_value = EagleValue()
        tokenizer = TargetTokenizer.of(target_worker.tokenizer)
        follower = SnapshotFollower(settings.index.directory, None if tokenizer is None else tokenizer.fingerprint)
        drafter = TreeDrafter() if self._model_free else None
        self._book = DraftBook(drafter, follower, self._vocabulary_size, tokenizer)
        self._verdict: _Verdict | None = None
        receipts.publish(self._receipt_of, server_args.enable_metrics)
        logger.info(
            "agentspec: up to %d nodes per step, EAGLE-3 %s, model-free drafts %s",
            self._widths.largest - 1,
            "on" if with_head else "off",
            "on" if self._model_free else "off",
        )

    def init_cuda_graphs(self) -> None:
        """Capture one graph per width, where there are graphs."""
        super().init_cuda_graphs()
        self._graphs = GraphStates.capture(self, VerifyWidths(self._widths.largest, self._captured))
        if self._graphs is not None:
            self._widths = self._graphs.widths

    def forward_batch_generation(
        self,
        batch: Any,
        on_publish: Callable[[torch.Tensor], None] | None = None,
        grammar_barrier: Any = None,
        pp_proxy_tensors: Any = None,
    ) -> Any:
        """One prefill or one decode round of SGLang's scheduler."""
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch:
            result = self._forward_prefill_batch(batch, on_publish, pp_proxy_tensors)
            if self._draft_worker is None:
                result.next_draft_input = self._draft_input(result.next_token_ids)
            return result
        return self._decode_round(batch, on_publish, grammar_barrier)

    def _decode_round(self, batch: Any, on_publish: Callable[[torch.Tensor], None] | None, grammar_barrier: Any) -> Any:
        started = perf_counter()
        self._settle()
        roots = batch.spec_info.bonus_tokens.cpu().numpy().astype(np.int64)
        lengths = (batch.seq_lens if batch.seq_lens_cpu is None else batch.seq_lens_cpu).cpu().numpy().astype(np.int64)
        active = [
            self._book.follow(request, length, root)
            for request, length, root in zip(batch.reqs, lengths.tolist(), roots.tolist(), strict=True)
        ]
        trees, eagle_skipped = self._draft(batch, active, lengths)
        trees = self._agreement.on(trees)
        width = self._widths.of(max(len(tree) for tree in trees))
        self._use_width(width)
        batch.spec_info = build_verify_input(
            trees,
            roots,
            lengths,
            width,
            target_worker=self.target_worker,
            device=self.device,
            penalties=self._penalties(batch.reqs, active),
            truncated=[_truncates(request.sampling_params) for request in batch.reqs],
        )
        verifying = perf_counter()
        result = self._verify(batch, width, grammar_barrier)
        if on_publish is not None:
            on_publish(result.new_seq_lens)
        if self._draft_worker is None:
            result.next_draft_input = self._draft_input(result.next_draft_input.bonus_tokens)
        else:
            with self._draft_context():
                self._draft_worker._draft_extend_for_decode(batch, result)
        self._verdict = _Verdict(
            active=active,
            trees=trees,
            tokens=result.next_token_ids,
            counts=result.accept_lens,
            accepted=result.accept_index,
            width=width,
            eagle_skipped=eagle_skipped,
            draft_seconds=(verifying - started) / len(active),
            started=verifying,
        )
        if self.device == "cpu":
            self._settle()
        return result

    def _draft(
        self, batch: Any, active: Sequence[ActiveRequest], lengths: NDArray[np.int64]
    ) -> tuple[list[DraftTree], bool]:
        """The tree of every request, and whether the EAGLE-3 draft was skipped."""
        budgets = [
            self._budget(request, one, int(length), len(active))
            for request, one, length in zip(batch.reqs, active, lengths, strict=True)
        ]
        trees = [self._book.propose(one, budget, None) for one, budget in zip(active, budgets, strict=True)]
        wanted = [budget.max_nodes > 0 for budget in budgets]
        if self._draft_worker is None or not any(wanted):
            return trees, False
        unsure = [1.0 - confidence(tree) for tree, asks in zip(trees, wanted, strict=True) if asks]
        if not self._agreement.on(self._eagle_value.worth(unsure, len(active))):
            return trees, True
        started = perf_counter()
        with self._draft_context():
            drafted = self._draft_worker.draft_trees(batch, self._eagle_value.hit_rate)
        merged = [
            self._book.propose(one, budget, extra) for one, budget, extra in zip(active, budgets, drafted, strict=True)
        ]
        self._eagle_value.drafted(perf_counter() - started)
        return merged, False

    def _budget(self, request: Any, active: ActiveRequest, length: int, batch: int) -> Budget:
        """Bounds of a request's tree: its room, what it may still generate, and what a step costs."""
        remaining = request.sampling_params.max_new_tokens - len(active.output)
        room = self._context_length - length - 1
        nodes = min(self._widths.largest - 1, self._drafting.max_nodes)
        deepest = min(remaining - 1, room, nodes, self._drafting.max_depth)
        if deepest < 1 or request.finished() or not may_speculate(request, active.binding):
            return Budget(max_nodes=0, max_depth=0)
        return Budget(
            max_nodes=nodes,
            max_depth=deepest,
            min_path_prob=self._drafting.min_path_prob,
            cost=self._cost.curve(self._widths.of_nodes()[: nodes + 1], batch),
        )

    def _penalties(self, requests: Sequence[Any], active: Sequence[ActiveRequest]) -> list[PathPenalties | None]:
        for request, one in zip(requests, active, strict=True):
            if one.penalties is None and (rule := PenaltyRule.of(request)) is not None:
                one.penalties = PathPenalties(rule, self._vocabulary_size, self.device)
            if one.penalties is not None:
                one.penalties.catch_up(one.output)
        return [one.penalties for one in active]

    def _verify(self, batch: Any, width: int, grammar_barrier: Any) -> Any:
        return run_eagle_verify(
            batch,
            target_worker=self.target_worker,
            req_to_token_pool=self.req_to_token_pool,
            token_to_kv_pool_allocator=self.token_to_kv_pool_allocator,
            plan_stream=self.plan_stream,
            plan_stream_ctx=self.plan_stream_ctx,
            topk=CHAIN if width == 1 else 2,  # above 1: the accepted path is moved to the front
            num_draft_tokens=width,
            device=self.device,
            metadata_ready_pre_pad=False,
            finalize_tree_path=True,
            grammar_barrier=grammar_barrier,
        )

    def _settle(self) -> None:
        """Take in the outcome of the last verify step."""
        verdict, self._verdict = self._verdict, None
        if verdict is None:
            return
        counts = verdict.counts.tolist()
        tokens = verdict.tokens.view(-1, verdict.width).tolist()
        paths = verdict.accepted.cpu().numpy().astype(np.int64)
        seconds = perf_counter() - verdict.started
        base = np.arange(len(paths)).reshape(-1, 1) * verdict.width
        sources = accepted_sources(verdict.trees, np.where(paths < 0, -1, paths - base))
        for active, tree, accepted, new, count in zip(
            verdict.active, verdict.trees, sources, tokens, counts, strict=True
        ):
            active.rounds.append(Round(tree.source, accepted, verdict.eagle_skipped, verdict.draft_seconds, seconds))
            self._book.commit(active, new[:count])
        self._cost.observe(verdict.width * len(counts), seconds)
        self._eagle_value.verified(
            seconds + verdict.draft_seconds * len(counts),
            sum(counts) / len(counts),
            [] if verdict.eagle_skipped else [int((accepted == Source.EAGLE3).sum()) for accepted in sources],
        )

    def _receipt_of(self, request: Any) -> dict[str, Any] | None:
        active = self._book.find(request)
        if active is None:
            return None
        if len(active.rounds) < request.spec_verify_ct:
            self._settle()
        return receipts.receipt(request, active)

    def _use_width(self, width: int) -> None:
        """Switch graphs and attention state to a width; the scheduler reads it off the result."""
        if self._graphs is not None:
            self._graphs.use(width)
        self.speculative_num_draft_tokens = width
        if self._draft_worker is not None:
            self._draft_worker.speculative_num_draft_tokens = width

    def _draft_input(self, bonus_tokens: torch.Tensor) -> EagleDraftInput:
        """What the scheduler carries between rounds without a head: the last token, and empty rows to slice."""
        rows = len(bonus_tokens)
        return EagleDraftInput(
            bonus_tokens=bonus_tokens,
            topk_p=torch.empty(rows, 0, device=self.device),
            topk_index=torch.empty(rows, 0, dtype=torch.int64, device=self.device),
        )

    def _draft_context(self) -> contextlib.ExitStack:
        stack = contextlib.ExitStack()
        stack.enter_context(draft_tp_context(self._draft_worker.parallel_layout))
        stack.enter_context(speculative_moe_backend_context())
        stack.enter_context(speculative_moe_a2a_backend_context())
        return stack


def _truncates(params: Any) -> bool:
    """Whether top-k, top-p or min-p leave out tokens."""
    return bool(params.top_k != TOP_K_ALL or params.top_p != 1.0 or params.min_p > 0)


@contextlib.contextmanager
def _replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, original)
