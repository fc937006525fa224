"""With speculation and without, a request says the same: every sampling feature, batched, in float32."""

import random
from collections import Counter
from dataclasses import replace

import pytest
import torch

from agentspec.drafters.tree import ROOT, Source
from agentspec.engines.base import OutputFormat
from agentspec.engines.local.model import SequenceInput
from tests.engines.local.running import ask, collect, collect_all, running
from tests.engines.local.scripted_drafters import ScriptedDrafter, noisy_oracle, tree_from_edges

PROMPTS = [
    "def main():",
    "import os\n",
    "class AgentspecError(Exception):\n    ",
    "for index in range(10):",
    "return [",
    "x = {",
    "# a comment\n",
    "while True:\n    try:",
    '"""Settings."""',
    "raise ValueError(",
    "from pathlib import Path\n\n",
    "if __name__ ==",
    "async def generate(self, request",
    "λ = 'ünïcödé'",
    "0x00ff, 0b11",
    "\n\n\n",
    "assert",
    "print(f'{a!r}')",
    "SELECT * FROM",
    "The quick brown fox",
]
SEEDED = {"temperature": 1.0, "seed": 1234}
SCHEMA = """{"type": "object", "properties": {
    "name": {"type": "string"}, "sizes": {"type": "array", "items": {"type": "number"}, "minItems": 4}
}, "required": ["name", "sizes"]}"""
FEATURES = {
    "greedy": {},
    "seeded": SEEDED,
    "hot": {"temperature": 1.7, "seed": 5},
    "top_p": {**SEEDED, "top_p": 0.8},
    "top_k": {**SEEDED, "top_k": 7},
    "min_p": {**SEEDED, "min_p": 0.05},
    "presence": {**SEEDED, "presence_penalty": 2.0},
    "frequency": {**SEEDED, "frequency_penalty": 2.0},
    "repetition": {**SEEDED, "repetition_penalty": 2.0},
    "greedy penalties": {"presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.2},
    "logit_bias": {**SEEDED, "logit_bias": {40: 4.0, 41: -100.0}},
    "logprobs": {**SEEDED, "logprobs": 3},
    "stop": {**SEEDED, "stop": ("e", "(", "self.")},
    "stop_token_ids": {**SEEDED, "stop_token_ids": tuple(range(12, 640, 24))},
    "n": {**SEEDED, "n": 2},
    "json_object": {**SEEDED, "output_format": OutputFormat("json_object")},
    "json_schema": {**SEEDED, "output_format": OutputFormat("json_schema", SCHEMA), "top_p": 0.9},
    "greedy json_schema": {"output_format": OutputFormat("json_schema", SCHEMA), "logprobs": 2},
    "regex": {**SEEDED, "output_format": OutputFormat("regex", "([a-z_]+, ){5}[0-9]+"), "n": 2},
    "everything": {
        "temperature": 0.9,
        "seed": 77,
        "top_p": 0.95,
        "top_k": 50,
        "min_p": 0.01,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.2,
        "repetition_penalty": 1.1,
        "logit_bias": {50: 1.0},
        "logprobs": 2,
        "stop": ("zz",),
        "n": 2,
    },
}


def requests_for(feature):
    return [
        ask(id=f"{place}", prompt=prompt, max_tokens=24, **FEATURES[feature]) for place, prompt in enumerate(PROMPTS)
    ]


def assert_same(speculative, plain):
    assert speculative.tokens == plain.tokens
    assert speculative.text == plain.text
    assert speculative.finish_reason == plain.finish_reason
    assert [item.token_id for item in speculative.logprobs] == [item.token_id for item in plain.logprobs]
    for mine, other in zip(speculative.logprobs, plain.logprobs, strict=True):
        assert mine.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert [token for token, _, _ in mine.top] == [token for token, _, _ in other.top]
        assert [p for _, _, p in mine.top] == pytest.approx([p for _, _, p in other.top], abs=1e-4)


def flat(results):
    return [choice for choices in results for choice in choices]


@pytest.mark.parametrize("feature", FEATURES)
async def test_speculation_changes_nothing(tiny, feature):
    requests = requests_for(feature)
    async with running(tiny, speculation=False, retained_prefixes=0) as engine:
        plain = [await collect(engine, request) for request in requests]
    drafter = noisy_oracle([choice.tokens for choice in flat(plain)], tiny.model.vocab_size)
    async with running(tiny, drafter=drafter, retained_prefixes=0) as engine:
        speculative = await collect_all(engine, requests)
    for mine, other in zip(flat(speculative), flat(plain), strict=True):
        assert_same(mine, other)
        assert not other.receipt.speculation
        assert mine.receipt.completion_tokens == other.receipt.completion_tokens
    steps = sum(choice.receipt.verify_steps for choice in flat(speculative))
    tokens = sum(choice.receipt.completion_tokens for choice in flat(speculative))
    accepted = sum(sum(choice.receipt.accepted.values()) for choice in flat(speculative))
    # Every token is the first of its choice, a bonus token or an accepted one; fewer bonus tokens where text ended.
    assert steps + accepted + len(flat(speculative)) >= tokens
    if feature not in ("stop", "stop_token_ids"):
        assert accepted > tokens / 4, "the drafts were not put to the test"


async def test_features_have_an_effect(tiny):
    """Each feature's text differs from the plain seeded one, or it would be tested in vain."""
    async with running(tiny, speculation=False) as engine:
        texts = {feature: await collect_all(engine, requests_for(feature)[:6]) for feature in FEATURES}
    seeded = [choices[0].tokens for choices in texts["seeded"]]
    for feature, results in texts.items():
        if feature not in ("seeded", "n", "logprobs"):
            assert [choices[0].tokens for choices in results] != seeded, feature
    assert [choices[0].tokens for choices in texts["n"]] == seeded
    assert all(choices[0].tokens != choices[1].tokens for choices in texts["n"])


@pytest.mark.parametrize("feature", ["greedy", "everything"])
async def test_a_warm_prefix_cache_changes_nothing(tiny, feature):
    long_prompt = "\n".join(PROMPTS) * 2
    first = ask(id="a", prompt=long_prompt, **FEATURES[feature])
    async with running(tiny) as engine:
        cold = await collect(engine, first)
        warm = await collect(engine, replace(first, id="b"))
    assert cold[0].receipt.cached_tokens == 0
    assert warm[0].receipt.cached_tokens == warm[0].receipt.prompt_tokens - 1
    for mine, other in zip(warm, cold, strict=True):
        assert_same(mine, other)


async def test_a_follow_up_reuses_prompt_and_answer(tiny):
    async with running(tiny) as engine:
        first = (await collect(engine, ask(id="a", prompt=tuple(range(3, 100)))))[0]
        longer = (*range(3, 100), *first.tokens, 200, 201)
        warm = (await collect(engine, ask(id="b", prompt=longer)))[0]
    async with running(tiny) as engine:
        cold = (await collect(engine, ask(id="b", prompt=longer)))[0]
    # The last token of an answer has no keys and values: nothing came after it.
    assert warm.receipt.cached_tokens == 97 + len(first.tokens) - 1
    assert_same(warm, cold)


async def test_adversarial_drafts_cost_only_time(tiny):
    """Trees full of wrong tokens, of end tokens, and as large as allowed."""
    end = next(iter(tiny.model.eos_token_ids))
    drafter = noisy_oracle([[end] * 40, [0] * 40], tiny.model.vocab_size, seed=3)
    requests = [replace(request, n=1) for request in requests_for("seeded")[:6]]
    async with running(tiny, speculation=False) as engine:
        plain = await collect_all(engine, requests)
    async with running(tiny, drafter=drafter) as engine:
        speculative = await collect_all(engine, requests)
    for mine, other in zip(flat(speculative), flat(plain), strict=True):
        assert_same(mine, other)


def exact_shares(target, prompt, top_k, length):
    """The distribution of the next `length` tokens under top-k sampling, from the model's own logits."""
    shares = {(): 1.0}
    for _ in range(length):
        longer = {}
        for text, mass in shares.items():
            tokens = torch.tensor([*prompt, *text])
            cache = target.model.new_cache(len(tokens))
            last = torch.tensor([len(tokens) - 1])
            logits = target.model.forward([SequenceInput(cache, tokens, torch.arange(len(tokens)), logit_rows=last)])
            best = logits[0].topk(top_k)
            for token, share in zip(best.indices.tolist(), best.values.softmax(0).tolist(), strict=True):
                longer[(*text, token)] = mass * share
        shares = longer
    return shares


async def test_sampled_texts_have_the_targets_distribution(tiny):
    """Chi-square over 2,000 texts of three tokens, drafted by several sources that overlap and are often wrong."""
    prompt, top_k, length, runs = (5, 40, 90, 33), 3, 3, 16
    expected = exact_shares(tiny, prompt, top_k, length)
    truths = list(expected)
    rng = random.Random(1)

    def propose(written, budget):
        """Half of the true continuations, each from any source, and a wrong token beside them."""
        known = [truth for truth in truths if list(truth[: len(written)]) == written and rng.random() < 0.5]
        nodes, edges = {}, [(ROOT, 600, Source.EAGLE3)]
        for truth in known:
            for end in range(len(written) + 1, min(length, len(written) + budget.max_depth) + 1):
                path = truth[len(written) : end]
                if path not in nodes:
                    nodes[path] = len(edges)
                    edges.append((nodes.get(path[:-1], ROOT), path[-1], rng.choice(list(Source))))
        return tree_from_edges(edges)

    requests = [
        ask(id=str(run), prompt=prompt, n=128, temperature=1.0, top_k=top_k, seed=1000 * run, max_tokens=length)
        for run in range(runs)
    ]
    async with running(tiny, drafter=ScriptedDrafter(propose), max_running=2) as engine:
        choices = flat(await collect_all(engine, requests))
    counts = Counter(tuple(choice.tokens) for choice in choices)
    assert set(counts) <= set(expected)
    total = len(choices)
    deviations = [
        (counts[text] - total * share) ** 2 / (total * share) for text, share in expected.items() if total * share >= 5
    ]
    degrees = len(deviations)
    assert degrees > 8
    assert sum(deviations) < degrees + 4 * (2 * degrees) ** 0.5
    assert sum(sum(choice.receipt.accepted.values()) for choice in choices) > total / 2


async def test_ignore_eos_goes_on(tiny):
    end = next(iter(tiny.model.eos_token_ids))
    bias = {end: 100.0}
    async with running(tiny) as engine:
        ended = (await collect(engine, ask(logit_bias=bias)))[0]
        went_on = (await collect(engine, ask(logit_bias=bias, ignore_eos=True, max_tokens=7)))[0]
    assert (ended.tokens, ended.text, ended.finish_reason) == ([end], "", "stop")
    assert (went_on.tokens, went_on.text, went_on.finish_reason) == ([end] * 7, "", "length")
