"""The head that comes with the package."""

import torch

from agentspec.drafters.eagle3.checkpoint import load_head
from agentspec.drafters.eagle3.config import default_capture
from agentspec.drafters.eagle3.drafter import shipped_head

EMBEDDED = "smollm2-135m-instruct"


def test_it_is_small_whole_and_for_the_embedded_model():
    folder = shipped_head(EMBEDDED)
    assert folder is not None
    assert (folder / "model.safetensors").stat().st_size <= 16_000_000
    head = load_head(folder, hidden=576, vocab_size=49_152, dtype=torch.bfloat16)
    assert head.config.capture == default_capture(30)
    assert "tokens per verify step" in (folder / "README.md").read_text()


def test_other_models_have_none():
    assert shipped_head("another-model") is None
