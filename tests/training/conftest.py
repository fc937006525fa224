import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.engines.local.tiny_target import train_tokenizer


@pytest.fixture(autouse=True)
def one_thread():
    """Tensors here are too small to share, and threads that wait for each other are slow on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory):
    """A random Llama deep enough for a head, with a real tokenizer."""
    folder = tmp_path_factory.mktemp("small")
    wrapped = train_tokenizer()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(wrapped),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=7,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.2,
        eos_token_id=wrapped.eos_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    wrapped.save_pretrained(folder)
    return folder
