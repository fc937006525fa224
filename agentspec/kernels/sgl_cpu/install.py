"""Put the stand-ins where SGLang looks for them."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from agentspec.kernels.sgl_cpu import attention, noise, slots, trees

if TYPE_CHECKING:
    from collections.abc import Callable

MODULE = "sgl_kernel"

_FUNCTIONS: tuple[Callable[..., object], ...] = (
    slots.assign_draft_cache_locs_contiguous_cpu,
    slots.assign_extend_cache_locs_cpu,
    slots.assign_req_to_token_pool_cpu,
    slots.build_draft_decode_metadata_cpu,
    slots.copy_all_layer_kv_cache_cpu,
    slots.fill_accept_out_cache_loc_cpu,
    slots.fill_bonus_tokens_cpu,
    slots.rotate_input_ids_cpu,
    trees.build_tree_kernel_efficient_cpu,
    trees.verify_tree_greedy_cpu,
)

_OPERATORS: dict[str, Callable[..., object]] = {
    "extend_attention_cpu("
    "Tensor q, Tensor? k, Tensor? v, Tensor(a!) out, Tensor k_buffer, Tensor v_buffer, float k_scale, float v_scale, "
    "Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens, Tensor extend_seq_lens, Tensor extend_start_loc, "
    "int max_len_extend, float sm_scale, float logit_cap, bool is_cross_attn, int sliding_window, "
    "Tensor? encoder_lens, Tensor? sinks, Tensor? tree_mask, bool is_causal) -> ()": attention.extend_attention_cpu,
    "decode_attention_cpu("
    "Tensor q, Tensor(a!) k_buffer, Tensor(b!) v_buffer, float k_scale, float v_scale, Tensor(c!) out, Tensor? k, "
    "Tensor? v, Tensor loc, Tensor attn_logits, Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens, "
    "float sm_scale, float logit_cap, bool is_cross_attn, int sliding_window, Tensor? encoder_lens, "
    "Tensor? sinks) -> ()": attention.decode_attention_cpu,
    "murmur_hash32_cpu(Tensor seed, Tensor positions, Tensor columns) -> Tensor": noise.murmur_hash32_cpu,
}

_libraries: list[torch.library.Library] = []
"""Keeps the operators registered for the life of the process."""


def _compiled_build_works() -> bool:
    if importlib.util.find_spec(MODULE) is None:
        return False
    try:
        module: ModuleType | None = importlib.import_module(MODULE)
    except (ImportError, OSError, RuntimeError):
        module = None
    if hasattr(module, "verify_tree_greedy_cpu"):
        return True
    for name in [name for name in sys.modules if name.partition(".")[0] == MODULE]:
        del sys.modules[name]  # a build for GPUs alone, or one that fails half-way
    return False


def _register_operators() -> None:
    library: Any = torch.library.Library(MODULE, "FRAGMENT")  # type: ignore[no-untyped-call]
    for schema, function in _OPERATORS.items():
        library.define(schema)
        library.impl(schema.partition("(")[0], function, "CPU")

    torch.library.register_fake(f"{MODULE}::murmur_hash32_cpu", _hash_shape, lib=library)
    _libraries.append(library)


def _hash_shape(seed: torch.Tensor, _positions: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """What `murmur_hash32_cpu` returns, without its values: for torch.compile."""
    return columns.new_empty((len(seed), len(columns)), dtype=torch.uint32)


def install() -> bool:
    """Make the stand-ins importable as `sgl_kernel`, unless a compiled build for the CPU is. Idempotent.

    Returns:
        Whether the stand-ins are in place.
    """
    loaded = sys.modules.get(MODULE)
    if loaded is not None:
        return getattr(loaded, "is_stand_in", False)
    if _compiled_build_works():
        return False
    module, speculative = ModuleType(MODULE, __doc__), ModuleType(f"{MODULE}.speculative")
    module.__dict__.update({function.__name__: function for function in _FUNCTIONS})
    module.__dict__.update(
        is_stand_in=True, __version__="0", __path__=[], __spec__=None, speculative=speculative
    )  # a path makes it a package: submodules that it lacks fail with ImportError
    speculative.__dict__["reconstruct_indices_from_tree_mask"] = trees.reconstruct_indices_from_tree_mask
    sys.modules[MODULE], sys.modules[speculative.__name__] = module, speculative
    _register_operators()
    return True
