"""What an EAGLE-3 head's `config.json` says."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from transformers import LlamaConfig

from agentspec.errors import ModelError

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PretrainedConfig

ARCHITECTURES = frozenset({"LlamaForCausalLMEagle3", "LlamaForCausalLM"})
"""Values of `architectures` under which Llama-like EAGLE-3 heads are published."""

UNSUPPORTED = ("norm_before_residual", "norm_before_fc", "fc_norm", "use_aux_norm", "norm_output", "attention_bias")
"""Options of some variants whose arithmetic differs from the original head."""

CAPTURED_LAYERS = 3
"""Residual streams of the target that the head reads: low, middle and high."""


def default_capture(layers: int) -> tuple[int, int, int]:
    """Layers of a target of `layers` layers whose incoming stream heads read unless their config says otherwise.

    The choice of the original implementation, which SGLang and SpecForge follow.
    """
    return 2, layers // 2, layers - 3


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """Sizes of a head.

    Attributes:
        hidden: width of the residual stream, equal to the target's.
        heads: query heads.
        kv_heads: key/value heads.
        head_dim: width of a head.
        intermediate: width of the gated feed-forward layer.
        vocab_size: the target's vocabulary.
        draft_vocab_size: tokens that the head can propose.
        norm_epsilon: added to the mean square in every RMS norm.
        rope: transformers' `rope_parameters`, and `max_position_embeddings`.
        capture: target layers whose incoming residual stream the head reads, ascending; None: `default_capture`.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab_size: int
    draft_vocab_size: int
    norm_epsilon: float
    rope: dict[str, Any]
    capture: tuple[int, ...] | None = None

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Parse `config.json` in the folder of a head.

        Raises:
            ModelError: it is missing, damaged, or describes a head with other arithmetic than EAGLE-3's.
        """
        file = folder / "config.json"
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            config = LlamaConfig(**{**values, "num_hidden_layers": values.get("num_hidden_layers", 1)})
        except (OSError, ValueError, TypeError) as error:
            raise ModelError(f"the draft head's {file} cannot be read: {error}") from error
        return cls._of(config, values, folder)

    @classmethod
    def _of(cls, config: LlamaConfig, values: dict[str, Any], folder: Path) -> Self:
        if not ARCHITECTURES & set(values.get("architectures") or []) or "draft_vocab_size" not in values:
            raise ModelError(
                f"{folder} holds {values.get('architectures')}, no EAGLE-3 head; one has the architecture "
                "LlamaForCausalLMEagle3 and a draft_vocab_size"
            )
        eagle = values.get("eagle_config") or {}
        for option in UNSUPPORTED:
            if values.get(option) or eagle.get(option):
                raise ModelError(f"the draft head in {folder} uses {option}, which is not supported")
        if config.num_hidden_layers != 1 or config.hidden_act != "silu":
            raise ModelError(
                f"the draft head in {folder} has {config.num_hidden_layers} layers and activation "
                f"{config.hidden_act}; EAGLE-3 has one layer and silu"
            )
        ids = eagle.get("eagle_aux_hidden_state_layer_ids") or values.get("eagle_aux_hidden_state_layer_ids")
        if ids is not None and len(ids) != CAPTURED_LAYERS:
            raise ModelError(f"the draft head in {folder} reads {len(ids)} target layers; EAGLE-3 reads three")
        return cls.sized_like(
            config,
            draft_vocab_size=values["draft_vocab_size"] or config.vocab_size,
            # The checkpoint names the layers whose output is read.
            capture=None if ids is None else tuple(index + 1 for index in ids),
        )

    @classmethod
    def sized_like(cls, config: PretrainedConfig, *, draft_vocab_size: int, capture: tuple[int, ...] | None) -> Self:
        """A head whose layer has the sizes of a Llama-like model's layers.

        Args:
            config: of the model.
            draft_vocab_size: tokens that the head can propose.
            capture: see the attribute.
        """
        return cls(
            hidden=config.hidden_size,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            intermediate=config.intermediate_size,
            vocab_size=config.vocab_size,
            draft_vocab_size=draft_vocab_size,
            norm_epsilon=config.rms_norm_eps,
            rope={**config.rope_parameters, "max_position_embeddings": config.max_position_embeddings},
            capture=capture,
        )

    def write(self, folder: Path) -> None:
        """Write `config.json` as SGLang, vLLM and transformers read it."""
        rope = dict(self.rope)
        values = {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": 1,
            "vocab_size": self.vocab_size,
            "draft_vocab_size": self.draft_vocab_size,
            "rms_norm_eps": self.norm_epsilon,
            "max_position_embeddings": rope.pop("max_position_embeddings"),
            "rope_parameters": rope,
            "rope_theta": rope["rope_theta"],
            "attention_bias": False,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
        }
        if self.capture is not None:
            values["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [layer - 1 for layer in self.capture]}
        (folder / "config.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
