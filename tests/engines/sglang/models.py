"""Small models for the tests: a random target, a random EAGLE-3 head, a tokenizer trained on the spot."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 640
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def train_tokenizer(directory: Path, texts: list[str]) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        unk_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
    )
    fast.save_pretrained(directory)


def make_target(directory: Path, texts: list[str], *, vocabulary: int = VOCABULARY, sharpness: float = 4.0) -> Path:
    """A random Llama; larger weights of the last layer make its greedy choices clear-cut."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=2,
        initializer_range=0.15,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight *= sharpness
    model.save_pretrained(directory)
    train_tokenizer(directory, texts)
    return directory


def make_eagle_head(directory: Path, target: Path, *, draft_vocabulary: int) -> Path:
    """A random EAGLE-3 head for `target`, in the published checkpoint format, its own vocabulary a part of it."""
    config = json.loads((target / "config.json").read_text())
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads, head_size = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    generator = torch.Generator().manual_seed(1)

    def weights(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.1

    first = 3  # special tokens are left out
    chosen = torch.zeros(config["vocab_size"], dtype=torch.bool)
    chosen[first : first + draft_vocabulary] = True
    tensors = {
        "d2t": torch.full((draft_vocabulary,), first, dtype=torch.int64),
        "t2d": chosen,
        "fc.weight": weights(hidden, 3 * hidden),
        "midlayer.self_attn.q_proj.weight": weights(heads * head_size, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": weights(kv_heads * head_size, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": weights(kv_heads * head_size, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": weights(hidden, heads * head_size),
        "midlayer.mlp.gate_proj.weight": weights(inner, hidden),
        "midlayer.mlp.up_proj.weight": weights(inner, hidden),
        "midlayer.mlp.down_proj.weight": weights(hidden, inner),
        "midlayer.input_layernorm.weight": torch.ones(hidden),
        "midlayer.hidden_norm.weight": torch.ones(hidden),
        "midlayer.post_attention_layernorm.weight": torch.ones(hidden),
        "norm.weight": torch.ones(hidden),
        "lm_head.weight": weights(draft_vocabulary, hidden),
    }
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "model.safetensors")
    head = {
        **config,
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "tie_word_embeddings": False,
        "draft_vocab_size": draft_vocabulary,
    }
    (directory / "config.json").write_text(json.dumps(head))
    return directory
