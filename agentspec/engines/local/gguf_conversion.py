"""Turns a Llama-architecture GGUF file into a plain Hugging Face folder with bfloat16 weights."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch
from gguf import GGUFReader, dequantize
from safetensors.torch import save_file
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoTokenizer, LlamaConfig

from agentspec.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def convert_gguf(gguf: Path, folder: Path, report: Callable[[int, int], None]) -> None:
    """Write configuration, weights and tokenizer of `gguf` to `folder`.

    Args:
        gguf: the model; its folder holds nothing else that transformers could mistake for it.
        folder: exists, is filled.
        report: called with tensors converted and tensors in all.

    Raises:
        ModelError: the file is of another architecture.
    """
    config = AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name)
    if not isinstance(config, LlamaConfig):
        raise ModelError(f"{gguf.name} holds a {config.model_type} model; only Llama models are converted")
    reader = GGUFReader(gguf)
    tensors = reader.tensors
    weights = {}
    for done, tensor in enumerate(tensors):
        report(done, len(tensors))
        name = checkpoint_name(tensor.name)
        weight = torch.tensor(dequantize(tensor.data, tensor.tensor_type))
        if name.endswith("q_proj.weight"):
            weight = separate_halves(weight, config.num_attention_heads)
        if name.endswith("k_proj.weight"):
            weight = separate_halves(weight, config.num_key_value_heads)
        weights[name] = weight.to(torch.bfloat16).contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    _save_config(config, folder, tied="lm_head.weight" not in weights)
    _save_tokenizer(gguf, reader, folder)
    report(len(tensors), len(tensors))


def checkpoint_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor.

    Raises:
        ModelError: a Llama model has no such tensor.
    """
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if layer and layer[2] in LAYER_NAMES:
        return f"model.layers.{layer[1]}.{LAYER_NAMES[layer[2]]}.{layer[3]}"
    stem, _, kind = name.rpartition(".")
    if stem not in OUTER_NAMES:
        raise ModelError(f"the GGUF holds {name}, which a Llama model does not have")
    return f"{OUTER_NAMES[stem]}.{kind}"


def separate_halves(weight: Tensor, heads: int) -> Tensor:
    """Undo GGUF's row order, which interleaves the two halves of every head that rotary embedding pairs.

    Args:
        weight: `[heads * head_dim, ...]`.
        heads: how many.
    """
    return weight.view(heads, -1, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


def _save_config(config: LlamaConfig, folder: Path, *, tied: bool) -> None:
    # The weights are plain now: a configuration that still said "quantised" would make loading refuse them.
    dropped = {"quantization_config", "_model_name_or_path", "transformers_version"}
    fields: dict[str, Any] = {name: value for name, value in config.to_diff_dict().items() if name not in dropped}
    fields |= {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16", "tie_word_embeddings": tied}
    LlamaConfig(**fields).save_pretrained(folder)


def _save_tokenizer(gguf: Path, reader: GGUFReader, folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    rules = reader.get_field("tokenizer.ggml.pre")
    if rules is not None and rules.contents() == "smollm":
        # A GGUF names its splitting rules without spelling them out, and transformers falls back on GPT-2's. SmolLM
        # splits every digit off first, or the last blank of an indentation would go with the digit behind it.
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    tokenizer.save_pretrained(folder)
