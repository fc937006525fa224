"""The attention variant: which CUDA source FlashInfer compiles, and with which arguments.

FlashInfer's FA2 template calls `LogitsMask` for every score of a tile. Ours asks for a key of the prefix nothing but
its index, and for a key of the verify step one bit of the query row's bit set. Nothing of the size of the context is
ever written or read for the mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from string import Template
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

HEAD_DIMS = (64, 128, 256)

_QUERY_NAMES: Mapping[torch.dtype, str] = {torch.float16: "f16", torch.bfloat16: "bf16"}
_CACHE_NAMES: Mapping[torch.dtype, str] = {
    **_QUERY_NAMES,
    torch.float8_e4m3fn: "e4m3",
    torch.float8_e5m2: "e5m2",
}

TENSORS = ("ancestor_bits",)
SCALARS = ("words", "window", "sm_scale", "logits_soft_cap")
"""Arguments of the kernel beside FlashInfer's own, in order. A wrapper fills in the last two from its plan."""

VARIANT = "AgentspecTreeAttention"

_SOURCE = Template(r"""
struct $variant : AttentionVariantBase {
  static constexpr bool use_softmax = true;
  static constexpr bool use_soft_cap = $soft_cap;
  static constexpr bool use_window = $window;

  uint32_t qo_len, kv_len, window_left, prefix_len, words;
  int32_t window;
  const uint64_t* ancestors;
  float sm_scale_log2, pre_tanh_scale;

  template <typename Params>
  __device__ __host__ $variant(const Params& params, uint32_t batch_idx, uint8_t* smem_ptr) {
    qo_len = params.get_qo_len(batch_idx);
    kv_len = params.get_kv_len(batch_idx);
    // The template skips tiles outside a window that it counts in rows. Ours counts positions and is applied below.
    window_left = kv_len;
    prefix_len = kv_len - qo_len;
    words = static_cast<uint32_t>(params.words);
    window = static_cast<int32_t>(params.window);
    ancestors = reinterpret_cast<const uint64_t*>(params.ancestor_bits) +
                static_cast<uint64_t>(params.q_indptr[batch_idx]) * words;
    if constexpr (use_soft_cap) {
      pre_tanh_scale = static_cast<float>(params.sm_scale) / static_cast<float>(params.logits_soft_cap);
      sm_scale_log2 = math::log2e * static_cast<float>(params.logits_soft_cap);
    } else {
      pre_tanh_scale = 0.f;
      sm_scale_log2 = math::log2e * static_cast<float>(params.sm_scale);
    }
  }

  // Rows of an ancestor set that are later than `row`, itself excluded: all of them with row = -1.
  __device__ __forceinline__ int32_t later(const uint64_t* set, int32_t row) const {
    int32_t count = 0;
    for (int32_t word = (row + 1) / 64; word < static_cast<int32_t>(words); ++word) {
      const int32_t passed = row + 1 - word * 64;
      count += __popcll(passed > 0 ? set[word] >> passed : set[word]);
    }
    return count;
  }

  REGISTER_LOGITS_TRANSFORM(params, logits, batch_idx, qo_idx, kv_idx, qo_head_idx, kv_head_idx, {
    if constexpr (use_soft_cap) {
      return T(math::tanh(static_cast<float>(logits) * pre_tanh_scale));
    } else {
      return logits;
    }
  })

  REGISTER_LOGITS_MASK(params, batch_idx, qo_idx, kv_idx, qo_head_idx, kv_head_idx, {
    if (qo_idx >= qo_len || kv_idx >= kv_len) return false;  // the padding of a tile
    const uint64_t* set = ancestors + qo_idx * words;
    if (kv_idx < prefix_len) {
      // Depth is the size of the set less the row itself; nodes of one depth share a position.
      if constexpr (use_window) {
        return static_cast<int32_t>(prefix_len - kv_idx) + later(set, -1) - 1 <= window;
      }
      return true;
    }
    const uint32_t key = kv_idx - prefix_len;
    bool visible = (set[key / 64] >> (key % 64)) & 1;
    if constexpr (use_window) {
      visible = visible && later(set, static_cast<int32_t>(key)) <= window;
    }
    return visible;
  })
};
""")


@dataclass(frozen=True, slots=True)
class TreeVariant:
    """One compiled form of the variant.

    Attributes:
        query_dtype: of queries and outputs, float16 or bfloat16.
        cache_dtype: of keys and values; these or 8-bit floats.
        head_dim: one of `HEAD_DIMS`.
        soft_cap: whether scores are capped by a tanh.
        window: whether a sliding window applies.

    Raises:
        ValueError: FlashInfer has no such kernel.
    """

    query_dtype: torch.dtype
    cache_dtype: torch.dtype
    head_dim: int
    soft_cap: bool = False
    window: bool = False

    def __post_init__(self) -> None:
        if self.query_dtype not in _QUERY_NAMES:
            raise ValueError(f"queries are float16 or bfloat16 in the tree kernel, not {self.query_dtype}")
        if self.cache_dtype not in _CACHE_NAMES:
            raise ValueError(f"the cache is float16, bfloat16 or an 8-bit float, not {self.cache_dtype}")
        if self.cache_dtype in _QUERY_NAMES and self.cache_dtype != self.query_dtype:
            raise ValueError(f"a cache of {self.cache_dtype} does not go with queries of {self.query_dtype}")
        if self.head_dim not in HEAD_DIMS:
            raise ValueError(f"head dimension {self.head_dim} is not one of {', '.join(map(str, HEAD_DIMS))}")

    @property
    def name(self) -> str:
        """Names the compiled module in FlashInfer's cache."""
        parts = [
            "agentspec_tree",
            _QUERY_NAMES[self.query_dtype],
            _CACHE_NAMES[self.cache_dtype],
            f"d{self.head_dim}",
            *(["softcap"] if self.soft_cap else []),
            *(["window"] if self.window else []),
        ]
        return "_".join(parts)

    @property
    def source(self) -> str:
        """CUDA source of the variant's struct."""
        return _SOURCE.substitute(variant=VARIANT, soft_cap=str(self.soft_cap).lower(), window=str(self.window).lower())

    def jit_args(self) -> list[Any]:
        """`jit_args` of FlashInfer's wrappers and generators."""
        return [
            self.name,
            self.query_dtype,
            self.cache_dtype,
            self.query_dtype,
            torch.int32,
            self.head_dim,
            self.head_dim,
            list(TENSORS),
            ["int64_t"],
            list(SCALARS),
            ["int64_t", "int64_t", "double", "double"],
            VARIANT,
            self.source,
        ]

    def jit_kwargs(self) -> dict[str, Any]:
        """`jit_kwargs` likewise."""
        return {
            "use_sliding_window": False,  # FlashInfer's own, counted in rows
            "use_logits_soft_cap": self.soft_cap,
            "paged_kv_stride_mode": "independent",  # one form for any layout of keys and values, half the compiling
        }
