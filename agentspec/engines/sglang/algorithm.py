"""The algorithm that `--speculative-algorithm AGENTSPEC` names. Runs inside SGLang only.

With an EAGLE-3 head it presents itself as EAGLE-3, so that hidden states are captured and pools sized for the draft;
without one as a draft model that needs neither, so that prefixes are cached as in plain decoding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang.srt.managers.overlap_utils import FutureMap
from sglang.srt.runtime_context import get_spec
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_registry import CustomSpecAlgo

from agentspec.config import Settings

if TYPE_CHECKING:
    import torch

NAME = "AGENTSPEC"
DEFAULT_RUNNING_REQUESTS = 48
"""SGLang's own default under speculation."""


class AgentspecAlgorithm(CustomSpecAlgo):  # type: ignore[misc]
    """See the module's docstring."""

    _declared_head = False

    def _has_head(self) -> bool:
        try:
            return get_spec().speculative_draft_model_path is not None
        except ValueError:  # the configuration is not published yet, in this process
            return self._declared_head

    def is_eagle(self) -> bool:
        """Whether draft hidden states and draft caches are kept."""
        return self._has_head()

    def is_eagle3(self) -> bool:
        """Whether the target's hidden states of three layers are captured."""
        return self._has_head()

    def is_standalone(self) -> bool:
        """Whether trees are verified without any hidden state."""
        return not self._has_head()

    def has_draft_kv(self) -> bool:
        """Whether the draft phase writes KV."""
        return self._has_head()

    def need_topk(self) -> bool:
        """Whether the next round needs the draft's candidates of this one."""
        return self._has_head()

    def carries_draft_hidden_states(self) -> bool:
        """Whether a prefill server would have to send hidden states along."""
        return self._has_head()

    def get_platform_worker_cls(self) -> None:
        """No other platform brings a worker of its own."""

    def create_future_map(
        self,
        device: torch.device,
        req_to_token_pool: Any,
        needs_cpu_seq_lens: bool = True,
        needs_confidence_relay: bool = False,
    ) -> Any:
        """SGLang's relay between overlapping rounds."""
        return FutureMap(device, self, req_to_token_pool, needs_cpu_seq_lens, needs_confidence_relay)

    def handle_server_args(self, server_args: Any) -> None:
        """Fill in what the command line left open; refuse what this algorithm cannot do."""
        for flag, problem in _unsupported(server_args).items():
            if problem:
                raise ValueError(f"--speculative-algorithm {NAME} does not support {flag}")
        settings = Settings.load()
        self._declared_head = server_args.speculative_draft_model_path is not None
        largest = min(max(settings.sglang.verify_widths), settings.drafting.max_nodes + 1)
        if server_args.speculative_num_draft_tokens is None:
            server_args.speculative_num_draft_tokens = largest
        if not self._declared_head:
            server_args.speculative_num_steps = server_args.speculative_eagle_topk = 1
        if server_args.speculative_num_steps is None:
            server_args.speculative_num_steps = settings.sglang.draft_steps
        if server_args.speculative_eagle_topk is None:
            server_args.speculative_eagle_topk = settings.sglang.draft_branches
        if server_args.max_running_requests is None:
            server_args.max_running_requests = DEFAULT_RUNNING_REQUESTS
        server_args.enable_mixed_chunk = False


def _unsupported(server_args: Any) -> dict[str, bool]:
    return {
        "--pp-size above 1": server_args.pp_size > 1,
        "--enable-dp-attention": bool(server_args.enable_dp_attention),
        "--disaggregation-mode": server_args.disaggregation_mode != "null",
        "--enable-lora": bool(server_args.enable_lora),
        "--enable-watermark": bool(server_args.enable_watermark),
        "--incremental-streaming-output": bool(server_args.incremental_streaming_output),
    }


def register() -> None:
    """Make the algorithm known to SGLang. Call once per process."""

    @SpeculativeAlgorithm.register(NAME, supports_overlap=True, spec_class=AgentspecAlgorithm)  # type: ignore[untyped-decorator]
    def _worker_class(_server_args: Any) -> type:
        from agentspec.engines.sglang.worker import AgentspecWorker

        return AgentspecWorker
