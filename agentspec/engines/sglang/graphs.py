"""One set of attention state and graphs per verify width, on devices that need them. Runs inside SGLang only.

SGLang's attention backends and CUDA graphs are built for one width. Its adaptive speculation switches between sets
of them that differ in draft steps; here they differ in width alone. The CPU backend takes any width as it comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang.srt.model_executor.cuda_graph_config import Backend, Phase, check_cuda_graph_backend
from sglang.srt.model_executor.runner import DecodeCudaGraphRunner
from sglang.srt.runtime_context import get_context, get_exec
from sglang.srt.speculative.adaptive_runtime_state import SpecRuntimeState

if TYPE_CHECKING:
    from agentspec.engines.sglang.widths import VerifyWidths


class GraphStates:
    """The states of one worker.

    Args:
        worker: the `AgentspecWorker`.
        widths: those that are captured.
        states: one per width.
    """

    def __init__(self, worker: Any, widths: VerifyWidths, states: dict[int, SpecRuntimeState]) -> None:
        self._worker = worker
        self.widths = widths
        self._states = states

    @classmethod
    def capture(cls, worker: Any, widths: VerifyWidths) -> GraphStates | None:
        """Build a state for every width; None on devices that need none."""
        if worker.device == "cpu":
            return None
        states = {widths.largest: _present_state(worker, widths.largest)}
        for width in widths.widths[:-1]:
            states[width] = _build_state(worker, width)
        return cls(worker, widths, states)

    def use(self, width: int) -> None:
        """Make the state of one captured width the worker's."""
        state, worker = self._states[width], self._worker
        runner = worker.target_worker.model_runner
        if runner.attn_backend is state.target_attn_backend:
            return
        runner.attn_backend = state.target_attn_backend
        runner.decode_cuda_graph_runner = state.target_graph_runner
        draft = worker.draft_worker
        if draft is not None:
            draft.draft_attn_backend = draft.draft_runner.draft_attn_backend = state.draft_attn_backend
            draft.cuda_graph_runner = state.cuda_graph_runner
            draft.draft_extend_attn_backend = state.draft_extend_attn_backend
            draft.cuda_graph_runner_for_draft_extend = state.cuda_graph_runner_for_draft_extend
            if state.draft_extend_attn_backend is not None:
                draft.draft_runner.attn_backend = state.draft_extend_attn_backend
        get_context().override("agentspec.width", speculative_num_draft_tokens=width)


def _present_state(worker: Any, width: int) -> SpecRuntimeState:
    """What SGLang built at start, for the largest width."""
    runner, draft = worker.target_worker.model_runner, worker.draft_worker
    return SpecRuntimeState(
        speculative_num_steps=worker.speculative_num_steps,
        speculative_num_draft_tokens=width,
        draft_attn_backend=None if draft is None else draft.draft_attn_backend,
        cuda_graph_runner=None if draft is None else draft.cuda_graph_runner,
        target_attn_backend=runner.attn_backend,
        target_graph_runner=runner.decode_cuda_graph_runner,
        draft_extend_attn_backend=None if draft is None else draft.draft_extend_attn_backend,
        cuda_graph_runner_for_draft_extend=None if draft is None else draft.cuda_graph_runner_for_draft_extend,
    )


def _build_state(worker: Any, width: int) -> SpecRuntimeState:
    sizes = get_exec().graph.cuda_graph_bs_decode
    if worker.draft_worker is not None:
        return worker.build_adaptive_runtime_state(worker.speculative_num_steps, width, cuda_graph_bs=sizes)
    runner, largest = worker.target_worker.model_runner, worker.speculative_num_draft_tokens
    get_context().override("agentspec.capture", speculative_num_draft_tokens=width)
    workspace = runner.init_new_workspace
    try:
        backend = runner._get_attention_backend(init_new_workspace=True)
        graphs = None
        if not check_cuda_graph_backend(Phase.DECODE, Backend.DISABLED):
            graphs = DecodeCudaGraphRunner(
                runner,
                attn_backend=backend,
                speculative_num_steps=worker.speculative_num_steps,
                speculative_num_draft_tokens=width,
            )
    finally:
        runner.init_new_workspace = workspace
        get_context().override("agentspec.capture", speculative_num_draft_tokens=largest)
    return SpecRuntimeState(
        speculative_num_steps=worker.speculative_num_steps,
        speculative_num_draft_tokens=width,
        draft_attn_backend=None,
        cuda_graph_runner=None,
        target_attn_backend=backend,
        target_graph_runner=graphs,
        draft_extend_attn_backend=None,
        cuda_graph_runner_for_draft_extend=None,
    )
