"""The worker of the algorithm AGENTSPEC: SGLang's EAGLE worker with our trees. Runs inside SGLang only.

A decode round is: bring every request's drafting state up to date; propose trees without a model; run the EAGLE-3
draft where the batch is not confident without it and merge its nodes; lay the trees out at the narrowest width that
holds them; verify; let EAGLE-3's cache follow what was accepted. Without an EAGLE-3 head there is no draft worker,
and the rest is the same.
"""

from __future__ import annotations

import contextlib
import logging
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sglang.srt.runtime_context import get_spec
from sglang.srt.sampling.sampling_params import TOP_K_ALL
from sglang.srt.speculative import eagle_worker_v2
from sglang.srt.speculative.eagle_info import EagleDraftInput
from sglang.srt.speculative.eagle_worker_common import run_eagle_verify

from agentspec.config import Settings
from agentspec.drafters.tree_drafter import TreeDrafter
from agentspec.engines.sglang import receipts
from agentspec.engines.sglang.agreement import Agreement
from agentspec.engines.sglang.cost import VerifyCost
from agentspec.engines.sglang.device_use import DeviceUse
from agentspec.engines.sglang.drafts import ActiveRequest, DraftBook
from agentspec.engines.sglang.eagle_draft import AgentspecDraftWorker
from agentspec.engines.sglang.eagle_value import EagleValue
from agentspec.engines.sglang.graphs import GraphStates
from agentspec.engines.sglang.penalties import PathPenalties, PenaltyRule
from agentspec.engines.sglang.proposals import Proposals
from agentspec.engines.sglang.snapshots import SnapshotFollower
from agentspec.engines.sglang.target_tokenizer import TargetTokenizer
from agentspec.engines.sglang.verdict import Verdict
from agentspec.engines.sglang.verify_input import CHAIN, verify_input_of
from agentspec.engines.sglang.widths import VerifyWidths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

logger = logging.getLogger(__name__)


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
        model_free = settings.sglang.model_free or not with_head
        self._captured = settings.sglang.verify_widths
        self._widths = VerifyWidths(self.speculative_num_draft_tokens)
        self._graphs: GraphStates | None = None
        self._device_use = DeviceUse(settings.sglang.device_verify, self.device)
        self._cost = VerifyCost()
        self._eagle_value = EagleValue()
        tokenizer = TargetTokenizer.of(target_worker.tokenizer)
        follower = SnapshotFollower(settings.index.directory, None if tokenizer is None else tokenizer.fingerprint)
        drafter = TreeDrafter() if model_free else None
        self._book = DraftBook(drafter, follower, self._vocabulary_size, tokenizer)
        self._book.warm_up()
        self._proposals = Proposals(
            self._book,
            self._draft_worker,
            agreement=Agreement(),
            cost=self._cost,
            eagle_value=self._eagle_value,
            device_use=self._device_use,
            drafting=settings.drafting,
            context_length=config.context_len,
            device=self.device,
        )
        self._verdict: Verdict | None = None
        receipts.publish(self._receipt_of, server_args.enable_metrics)
        logger.info(
            "agentspec: up to %d nodes per step, EAGLE-3 %s, model-free drafts %s",
            self._widths.largest - 1,
            "on" if with_head else "off",
            "on" if model_free else "off",
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
        proposal = self._proposals.of(batch, active, lengths, self._widths)
        penalties = self._penalties(batch.reqs, active)
        rows, sources = self._proposals.rows(proposal, batch, roots, lengths, self._widths)
        width = rows.tokens.shape[1]
        self._use_width(width)
        batch.spec_info = verify_input_of(
            rows,
            lengths,
            target_worker=self.target_worker,
            penalties=penalties,
            truncated=[_truncates(request.sampling_params) for request in batch.reqs],
        )
        verifying = perf_counter()
        result = self._verify(batch, width, grammar_barrier)
        if on_publish is not None:
            on_publish(result.new_seq_lens)
        if self._draft_worker is None:
            result.next_draft_input = self._draft_input(result.next_draft_input.bonus_tokens)
        else:
            with self._draft_worker.in_use():
                self._draft_worker._draft_extend_for_decode(batch, result)
        self._verdict = Verdict(
            active=active,
            sources=sources,
            tokens=result.next_token_ids,
            counts=result.accept_lens,
            accepted=result.accept_index,
            width=width,
            eagle_skipped=proposal.eagle_skipped,
            eagle=proposal.watch,
            draft_seconds=(verifying - started) / len(active),
            started=verifying,
        )
        if self.device == "cpu":
            self._settle()
        return result

    def _penalties(self, requests: Sequence[Any], active: Sequence[ActiveRequest]) -> list[PathPenalties | None]:
        for request, one in zip(requests, active, strict=True):
            if one.penalties is None and (rule := PenaltyRule.of(request)) is not None:
                one.penalties = PathPenalties(rule, self._vocabulary_size, self.device)
            if one.penalties is not None:
                one.penalties.catch_up(one.output)
        return [one.penalties for one in active]

    def _verify(self, batch: Any, width: int, grammar_barrier: Any) -> Any:
        compacts = None if width == 1 else self._device_use.compaction(self.token_to_kv_pool_allocator.get_kvcache())
        result = run_eagle_verify(
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
            finalize_tree_path=compacts is None,
            grammar_barrier=grammar_barrier,
        )
        if compacts is not None:
            compacts(batch, result)
        return result

    def _settle(self) -> None:
        """Take in the outcome of the last verify step."""
        verdict, self._verdict = self._verdict, None
        if verdict is not None:
            verdict.settle(self._book, self._cost, self._eagle_value)

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
