"""A tiny random target with a real tokenizer, made on the spot."""

import contextlib
import dataclasses
import inspect

import torch
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from agentspec.engines.local.model import TargetModel
from agentspec.engines.local.target import Target
from agentspec.engines.local.tokenizer import Tokenizer

VOCABULARY = 640
CONTEXT = 512
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'oracle' %}{{ raise_exception('no such role') }}{% endif %}"
    "<|start|>{{ message.role }}\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


class ConstantCost:
    """Rows are free, so that a drafter's whole tree is always worth its cost."""

    def seconds(self, rows, context):
        return 0.01


def train_tokenizer():
    """Byte-level BPE over modules that a change of this project does not touch."""
    tokenizer = RustTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<s>", "<|start|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([inspect.getsource(module) for module in (contextlib, dataclasses)], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="<|end|>")
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def make_folder(folder, seed=0, layers=2):
    """A model folder in Hugging Face format."""
    wrapped = train_tokenizer()
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(wrapped),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.25,
        bos_token_id=0,
        eos_token_id=wrapped.eos_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    wrapped.save_pretrained(folder)
    return folder


def load_tiny(folder):
    """The target in `folder`, in float32."""
    model = TargetModel.load(str(folder), folder, device="cpu", dtype="float32", threads=1)
    return Target("tiny", model, Tokenizer.load(folder), ConstantCost())
