"""Other architectures, run by transformers itself behind the same interface: general, but not lean."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForCausalLM
from transformers.cache_utils import Cache, DynamicLayer

from agentspec.engines.local.kv_cache import KVLayout
from agentspec.engines.local.model import TargetModel
from agentspec.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor
    from transformers import PretrainedConfig

    from agentspec.engines.local.kv_cache import KVCache
    from agentspec.engines.local.model import ModelRuntime, SequenceInput


class TransformersModel(TargetModel):
    """A causal language model whose layers all keep keys and values of one shape.

    Args:
        folder: the model in Hugging Face format.
        config: its configuration.
        runtime: how to run it; the context offered is no longer than a sliding window, so that every token sees all
            before it.

    Raises:
        ModelError: transformers cannot load it, or its layers keep another kind of state.
    """

    def __init__(self, folder: Path, config: PretrainedConfig, runtime: ModelRuntime) -> None:
        text = config.get_text_config()
        if set(getattr(text, "layer_types", None) or ["full_attention"]) - {"full_attention", "sliding_attention"}:
            raise ModelError(
                f"{config.model_type} keeps recurrent state, which draft trees cannot branch; "
                "choose a model whose layers are all attention"
            )
        try:
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=runtime.dtype, attn_implementation="sdpa")
        except (OSError, ValueError, RuntimeError, ImportError) as error:
            raise ModelError(f"transformers cannot load the model in {folder}: {error}") from error
        self._model = model.to(runtime.device).eval()
        # transformers 5.20 renamed the argument.
        names = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in names else "past_key_values"
        self._masks_by_kind = bool(getattr(text, "layer_types", None))
        layout = KVLayout(
            layers=text.num_hidden_layers,
            kv_heads=getattr(text, "num_key_value_heads", None) or text.num_attention_heads,
            head_dim=getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
            dtype=runtime.dtype,
            device=runtime.device,
        )
        super().__init__(layout, text.vocab_size, runtime)
        self.context_length = min(self.context_length, getattr(text, "sliding_window", None) or self.context_length)

    @torch.inference_mode()
    def forward_with_hidden(self, inputs: Sequence[SequenceInput], capture: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """See `TargetModel.forward_with_hidden`; sequences run one after the other."""
        logits, hidden = [], []
        for one in inputs:
            rows = one.wanted_rows().to(self.device)
            mask = one.full_mask().to(self.device)[None, None]
            output = self._model(
                input_ids=one.tokens.to(self.device)[None],
                position_ids=one.positions.to(self.device)[None],
                attention_mask={"full_attention": mask, "sliding_attention": mask} if self._masks_by_kind else mask,
                logits_to_keep=rows,
                output_hidden_states=bool(capture),
                use_cache=True,
                **{self._cache_argument: _CacheView(one.cache)},
            )
            logits.append(output.logits[0].float())
            hidden.append(
                torch.cat([output.hidden_states[layer][0].float() for layer in capture], -1)
                if capture
                else logits[-1].new_empty(len(one.tokens), 0)
            )
        return torch.cat(logits), torch.cat(hidden)


class _CacheView(Cache):  # type: ignore[misc]
    """A `KVCache` as transformers' attention layers want to see one."""

    def __init__(self, cache: KVCache) -> None:
        super().__init__(layer_class_to_replicate=DynamicLayer)
        self._cache = cache

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write `[1, kv_heads, q, head_dim]` behind the prefix; all keys and values so far."""
        k, v = self._cache.write(layer_idx, key_states[0], value_states[0])
        return k[None], v[None]

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002 - all layers are alike
        """Committed tokens."""
        return self._cache.length

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:  # noqa: ARG002
        """Keys that `query_length` new tokens see, and the offset of the first."""
        return self._cache.length + query_length, 0
