"""Which form of the verify kernel a deployment needs, out of its settings and its model's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from agentspec.errors import InvalidRequestError
from agentspec.kernels.flashinfer_tree.variant import TreeVariant

if TYPE_CHECKING:
    from agentspec.config import Settings

_CACHE_DTYPES = {
    "auto": None,
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
"""SGLang's `--kv-cache-dtype`; None is the model's own."""


@dataclass(frozen=True, slots=True)
class KernelForm:
    """What the kernels of a deployment compute.

    Attributes:
        variant: element types, head dimension and rules of the scores.
        heads: query heads on each GPU.
        kv_heads: key heads on each GPU.
    """

    variant: TreeVariant
    heads: int
    kv_heads: int


def kernel_form(settings: Settings, model_config: Any) -> KernelForm:
    """The form that SGLang will ask for when started with these settings.

    Args:
        settings: all of them.
        model_config: the model's `transformers` configuration.

    Raises:
        InvalidRequestError: there is no kernel of that form.
    """
    config = model_config.get_text_config()
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    named = (
        settings.engine.dtype
        if settings.engine.dtype != "auto"
        else str(getattr(config, "dtype", None)).removeprefix("torch.")
    )
    # SGLang runs models that were published in 32 bits in float16.
    dtype = torch.float16 if named in {"float32", "None"} else getattr(torch, named)
    cache = str(settings.sglang.arguments.get("kv-cache-dtype", "auto"))
    if cache not in _CACHE_DTYPES:
        raise InvalidRequestError(f"there is no verify kernel for a cache of {cache}", "kv-cache-dtype")
    share = settings.sglang.tensor_parallel
    try:
        variant = TreeVariant(
            dtype,
            _CACHE_DTYPES[cache] or dtype,
            head_dim,
            soft_cap=bool(getattr(config, "attn_logit_softcapping", None)),
        )
    except ValueError as error:
        raise InvalidRequestError(f"there is no verify kernel for this model: {error}") from error
    return KernelForm(variant, heads // share, max(1, kv_heads // share))
