"""Small models for the tests: a random target, an EAGLE-3 head fitted to it, a tokenizer trained on the spot."""

from pathlib import Path

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from agentspec.drafters.eagle3.checkpoint import save_head
from agentspec.drafters.eagle3.config import default_capture
from agentspec.engines.local.checkpoint import Checkpoint
from agentspec.engines.local.model import TargetModel
from agentspec.engines.local.tokenizer import Tokenizer
from agentspec.engines.local.weights import OuterWeights
from agentspec.training.features import FeatureStore, write_shard
from agentspec.training.initialise import initial_head
from agentspec.training.rollout import Rollout
from agentspec.training.trainer import Recipe, Trainer

VOCABULARY = 640
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{{ opened }}{% endif %}"
)


def train_tokenizer(directory: Path, texts: list[str]) -> None:
    tokenizer = tokenizers.Tokenizer(models.BPE())
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


def beginnings(sources: list[str], count: int) -> list[str]:
    """Texts that the model will repeat pieces of, of various lengths."""
    return [source[: 150 + 40 * number] for number, source in enumerate(sources[1 : count + 1])]


def fit_eagle_head(directory: Path, target: Path, texts: list[str], *, draft_vocabulary: int) -> Path:
    """An EAGLE-3 head that knows by heart how `target` continues `texts`, greedily; what else it drafts is wrong.

    A random target has no habits that a head could learn, so it learns these outputs, in a few seconds. Its own
    vocabulary is a part of the target's, so it misses some of their tokens.
    """
    model = TargetModel.load(str(target), directory / "cache", device="cpu", dtype="float32", threads=1)
    capture = default_capture(model.layout.layers)
    prompts = [Tokenizer.load(target).encode(text) for text in texts]
    write_shard(directory / "outputs.safetensors", Rollout(model, capture).generate(prompts, max_new=48))
    outputs = FeatureStore([directory / "outputs.safetensors"])
    first = 3  # special tokens are left out
    head = initial_head(target, capture, torch.arange(first, first + draft_vocabulary), seed=0)
    embedding = OuterWeights.read(Checkpoint(target).fetch).embedding
    recipe = Recipe(steps=120, test_time_steps=2, single_share=0.5, learning_rate=0.01, warmup=10, evaluate_every=120)
    history = Trainer(head, embedding, outputs, outputs, recipe=recipe, folder=directory / "training").run(
        lambda _: None
    )
    known = history[-1].acceptance
    assert known is not None
    assert min(known) > 0.4, f"the head has learnt too little: {known}"
    save_head(head, directory / "head")
    return directory / "head"
