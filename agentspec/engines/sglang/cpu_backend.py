"""SGLang's CPU attention backend under a name of our own.

SGLang downgrades the name `intel_amx` on machines without AMX; its classes work without it on the stand-ins of
`agentspec.kernels.sgl_cpu`, so they are registered once more as `agentspec_cpu`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

NAME = "agentspec_cpu"


def _target_backend(runner: Any) -> Any:
    from sglang.srt.layers.attention.intel_amx_backend import IntelAMXAttnBackend

    return IntelAMXAttnBackend(runner)


def _stamp(backend: Any) -> Any:
    backend.prefill_attention_backend_str = backend.decode_attention_backend_str = NAME
    return backend


def _is_ours(factory: Any) -> bool:
    from sglang.srt.runtime_context import attention_backends

    return bool((factory.draft_attn_backend or attention_backends()[1]) == NAME)


def _draft_decode_backend(original: Callable[..., Any], factory: Any) -> Any:
    """AROUND `DraftBackendFactory.create_decode_backend`: one backend per draft step."""
    if not _is_ours(factory):
        return original(factory)
    if factory.speculative_num_steps <= 1:
        return None
    from sglang.srt.layers.attention.intel_amx_backend import IntelAMXMultiStepDraftBackend

    steps = IntelAMXMultiStepDraftBackend(factory.draft_model_runner, factory.topk, factory.speculative_num_steps)
    for step in steps.attn_backends:
        _stamp(step)
    return _stamp(steps)


def _draft_extend_backend(original: Callable[..., Any], factory: Any) -> Any:
    """AROUND `DraftBackendFactory.create_draft_extend_backend`."""
    return _stamp(_target_backend(factory.draft_model_runner)) if _is_ours(factory) else original(factory)


def _gather_spec_extras(
    indices: Tensor,
    topk_p: Tensor,
    topk_index: Tensor,
    output_tokens: Tensor,
    hidden_states: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """REPLACE of a Triton gather that the overlap scheduler uses: rows `indices` of each buffer."""
    hidden = None if hidden_states is None else hidden_states[indices]
    return topk_p[indices], topk_index[indices], output_tokens[indices], hidden


def _last_slot(req_to_token: Tensor, req_pool_indices: Tensor, prefix_lens: Tensor) -> Tensor:
    """REPLACE of a dispatcher that would pick Triton for a backend name that it does not know."""
    from sglang.srt.mem_cache.allocation import get_last_loc_torch

    slots: Tensor = get_last_loc_torch(req_to_token, req_pool_indices, prefix_lens)
    return slots


def _keep_torch_kernels(*_args: Any, **_kwargs: Any) -> None:
    """REPLACE of the switch to Triton kernels that deterministic inference makes on GPUs; torch's own stay here."""


def register() -> None:
    """Make the backend selectable and replace what SGLang would run on Triton. Call once per process."""
    from sglang.srt.arg_groups import choices
    from sglang.srt.layers.attention.attention_registry import register_attention_backend
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    choices.add_attention_backend_choices([NAME])
    choices.add_deterministic_attention_backend_choices([NAME])
    choices.add_radix_supported_deterministic_attention_backend_choices([NAME])
    register_attention_backend(NAME)(_target_backend)
    factory = "sglang.srt.speculative.draft_utils.DraftBackendFactory"
    HookRegistry.register(f"{factory}.create_decode_backend", _draft_decode_backend, HookType.AROUND)
    HookRegistry.register(f"{factory}.create_draft_extend_backend", _draft_extend_backend, HookType.AROUND)
    gather = "sglang.kernels.ops.speculative.gather_spec_extras.gather_spec_extras"
    HookRegistry.register(gather, _gather_spec_extras, HookType.REPLACE)
    HookRegistry.register("sglang.srt.mem_cache.allocation.get_last_loc", _last_slot, HookType.REPLACE)
    invariant = "sglang.srt.batch_invariant_ops.enable_batch_invariant_mode"
    HookRegistry.register(invariant, _keep_torch_kernels, HookType.REPLACE)
