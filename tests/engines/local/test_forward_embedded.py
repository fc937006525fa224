"""The embedded model as it is pulled: its logits and its tokenizer."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentspec.config import Settings
from agentspec.engines.local.model import SequenceInput, TargetModel
from agentspec.engines.local.pull import pull
from agentspec.errors import ModelError

TEXT = "def area(width, height):\n    # 12 by 34\n    return width * height\n"


@pytest.fixture(scope="module")
def folder():
    try:
        return pull("smollm2-135m-instruct", Settings.load().cache_directory)
    except ModelError as error:
        pytest.skip(f"the embedded model cannot be fetched: {error}")


def test_logits_equal_transformers(folder, tmp_path):
    tokens = AutoTokenizer.from_pretrained(folder)(TEXT)["input_ids"]
    branch = [tokens[3], tokens[7], tokens[5]]
    oracle = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = oracle(torch.tensor([tokens])).logits[0]
        aside = oracle(torch.tensor([[*tokens[:10], *branch]])).logits[0, 10:]
    bound = 2e-5 * float(expected.abs().max())
    model = TargetModel.load(str(folder), tmp_path, device="cpu", dtype="float32", threads=1)
    cache = model.new_cache(len(tokens) + 8)

    def run(some: list[int], positions: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return model.forward([SequenceInput(cache, torch.tensor(some), positions, mask)])

    # Prefill of ten tokens, a tree of what follows with a branch aside, then plain decoding behind the accepted path.
    prefill = run(tokens[:10], torch.arange(10))
    torch.testing.assert_close(prefill, expected[:10], rtol=0, atol=bound)
    cache.compact(0, torch.arange(10))
    mask = torch.eye(6, dtype=torch.bool)
    for path in ([0, 2, 4], [1, 3, 5]):
        for depth, node in enumerate(path):
            mask[node, path[:depth]] = True
    tree = [token for pair in zip(branch, tokens[10:13], strict=True) for token in pair]
    logits = run(tree, 10 + torch.tensor([0, 0, 1, 1, 2, 2]), mask)
    torch.testing.assert_close(logits[0::2], aside, rtol=0, atol=bound)
    torch.testing.assert_close(logits[1::2], expected[10:13], rtol=0, atol=bound)
    cache.compact(10, torch.tensor([1, 3, 5]))
    for place in range(13, len(tokens)):
        logits = run(tokens[place : place + 1], torch.tensor([place]))
        torch.testing.assert_close(logits[0], expected[place], rtol=0, atol=bound)
        cache.compact(place, torch.arange(1))


def test_the_tokenizer_is_smollms(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.tokenize("   12ab") == ["ĠĠĠ", "1", "2", "ab"]
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert rendered.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert len(tokenizer.encode("<|im_end|>")) == 1
    assert len(tokenizer.encode("<repo_name>")) == 1
