"""Registers the attention backend `agentspec_flashinfer`.

`--attention-backend agentspec_flashinfer` verifies trees with our kernel, `--attention-backend flashinfer` with
SGLang's masks. EAGLE-3's draft steps have no trees to verify and stay SGLang's FlashInfer either way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "agentspec_flashinfer"
STOCK = "flashinfer"


def _create(runner: Any) -> Any:
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
    from sglang.srt.runtime_context import get_spec

    if runner.is_draft_worker or get_spec().speculative_num_draft_tokens is None:
        return ATTENTION_BACKENDS[STOCK](runner)
    if runner.use_mla_backend:
        raise NotImplementedError("the tree kernel does not serve MLA models; use --attention-backend flashinfer")
    from agentspec.engines.sglang.tree_attention_backend import TreeAttentionBackend

    return TreeAttentionBackend(runner, init_new_workspace=runner.init_new_workspace)


def _draft_backend(original: Callable[..., Any], factory: Any) -> Any:
    """AROUND `DraftBackendFactory.create_decode_backend` and `create_draft_extend_backend`."""
    from sglang.srt.runtime_context import attention_backends

    if (factory.draft_attn_backend or attention_backends()[1]) == NAME:
        factory.draft_attn_backend = STOCK
    return original(factory)


def register() -> None:
    """Make the backend selectable. Call once per process."""
    from sglang.srt.arg_groups import choices
    from sglang.srt.layers.attention.attention_registry import register_attention_backend

    choices.add_attention_backend_choices([NAME])
    register_attention_backend(NAME)(_create)


def keep_drafting_stock() -> None:
    """Let EAGLE-3's steps use SGLang's own backend. Call where the scheduler is loaded."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    factory = "sglang.srt.speculative.draft_utils.DraftBackendFactory"
    HookRegistry.register(f"{factory}.create_decode_backend", _draft_backend, HookType.AROUND)
    HookRegistry.register(f"{factory}.create_draft_extend_backend", _draft_backend, HookType.AROUND)
