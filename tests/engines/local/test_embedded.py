"""The embedded model with the real drafter: the same text with speculation on and off."""

from dataclasses import replace
from pathlib import Path

import pytest

import agentspec
from agentspec.config import Settings
from agentspec.engines.base import ChatPrompt
from agentspec.engines.local.model import TargetModel
from agentspec.engines.local.pull import pull
from agentspec.engines.local.target import Target
from agentspec.engines.local.tokenizer import Tokenizer
from agentspec.errors import ModelError
from tests.engines.local.running import ask, collect_all, running
from tests.engines.local.tiny_target import ConstantCost

SOURCE = (Path(agentspec.__file__).parent / "errors.py").read_text()
FEATURES = {
    "greedy": {},
    "seeded": {
        "temperature": 0.8,
        "seed": 11,
        "top_p": 0.95,
        "top_k": 40,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "logprobs": 2,
    },
}


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def embedded(request):
    cache = Settings().cache_directory
    try:
        folder = pull("smollm2-135m-instruct", cache)
    except ModelError as error:
        pytest.skip(f"the embedded model cannot be fetched: {error}")
    model = TargetModel.load(str(folder), cache, device="cpu", dtype=request.param)
    return Target("embedded", model, Tokenizer.load(folder), ConstantCost())


def edits(sampling):
    """Short edits of this project's own source, the text to edit in the prompt and as prediction."""
    pieces = [SOURCE[start : start + 350] for start in range(300, 1500, 400)]
    prompts = [f"Write this code again with better names:\n```python\n{piece}\n```" for piece in pieces]
    return [
        replace(
            ask(id=str(place), max_tokens=48, **sampling),
            prompt=ChatPrompt([{"role": "user", "content": prompt}]),
            prediction=piece,
        )
        for place, (prompt, piece) in enumerate(zip(prompts, pieces, strict=True))
    ]


@pytest.mark.parametrize("feature", FEATURES)
async def test_speculation_changes_nothing(embedded, feature):
    requests = edits(FEATURES[feature])
    async with running(embedded, speculation=False) as engine:
        plain = await collect_all(engine, requests)
    async with running(embedded) as engine:
        speculative = await collect_all(engine, requests)
    for [mine], [other] in zip(speculative, plain, strict=True):
        assert mine.tokens == other.tokens
        assert mine.text == other.text
        assert mine.finish_reason == other.finish_reason
        assert [item.logprob for item in mine.logprobs] == pytest.approx([p.logprob for p in other.logprobs], abs=1e-3)
    assert sum(sum(mine.receipt.accepted.values()) for [mine] in speculative) > 0
