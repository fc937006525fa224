import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.drafters.tree import ROOT, Source
from agentspec.errors import EngineError
from agentspec.kernels.acceptance import walk
from agentspec.kernels.noise import gumbel
from agentspec.kernels.processors import LogitBias, OccurrencePenalty, RepetitionPenalty
from agentspec.kernels.sampling import Sampler, Truncation
from tests.kernels.trees import draft_trees, tree_of

VOCAB = 6
logit_rows = st.lists(st.floats(-8, 8, width=32), min_size=VOCAB, max_size=VOCAB)


def naive_support(logits, top_k, top_p, min_p):
    """Truncation by its definition, token by token, in float64."""
    weights = [math.exp(float(value)) for value in logits]
    kept = [i for i in range(len(weights)) if weights[i] >= min_p * max(weights) * (1 - 1e-9)]
    if top_k:
        kth = sorted(weights, reverse=True)[: min(top_k, len(weights))][-1]
        kept = [i for i in kept if weights[i] >= kth]
    total = sum(weights[i] for i in kept)
    mass = 0.0
    for weight in sorted((weights[i] for i in kept), reverse=True):
        mass += weight / total
        if mass >= top_p:
            return [i for i in kept if weights[i] >= weight]
    return kept


@given(
    logits=st.lists(st.sampled_from([-3.0, -1.0, 0.0, 0.5, 1.0, 2.5]), min_size=1, max_size=20),
    top_k=st.integers(0, 25),
    top_p=st.sampled_from([0.05, 0.33, 0.61, 0.87, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.03, 0.4, 1.0]),
)
def test_truncation_keeps_what_its_definition_says(logits, top_k, top_p, min_p):
    support = Truncation(top_k, top_p, min_p).support(torch.tensor(logits))
    got = list(range(len(logits))) if support is None else support.tolist()
    assert got == naive_support(logits, top_k, top_p, min_p)


def test_a_nucleus_wider_than_the_first_look():
    logits = torch.linspace(0, 1, 5000)
    got = Truncation(top_p=0.9).support(logits)
    assert got is not None
    assert got.tolist() == naive_support(logits.tolist(), 0, 0.9, 0.0)


def test_greedy_takes_the_most_likely_and_ignores_truncation():
    logits = torch.tensor([0.0, 3.0, 2.0])
    assert Sampler(temperature=0, truncation=Truncation(min_p=1.0)).draw(logits, 0).token == 1
    assert Sampler(temperature=1e-9).draw(logits, 0).token == 1


def chi_square(counts, probabilities):
    total = sum(counts.values())
    return sum((counts[i] - total * p) ** 2 / (total * p) for i, p in enumerate(probabilities) if p > 0)


QUANTILE_99_9 = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47, 5: 20.52}


@pytest.mark.parametrize(
    ("temperature", "truncation"),
    [
        (1.0, Truncation()),
        (0.5, Truncation()),
        (2.0, Truncation(top_k=3)),
        (1.0, Truncation(top_p=0.7)),
        (1.3, Truncation(min_p=0.2)),
        (0.9, Truncation(top_k=5, top_p=0.9, min_p=0.02)),
    ],
)
def test_draws_follow_the_truncated_softmax(temperature, truncation):
    logits = torch.tensor([1.2, 0.3, -0.5, 0.9, -2.0, 0.1])
    kept = naive_support((logits / temperature).tolist(), truncation.top_k, truncation.top_p, truncation.min_p)
    weights = [math.exp(float(logits[i]) / temperature) if i in kept else 0.0 for i in range(VOCAB)]
    sampler = Sampler(seed=11, temperature=temperature, truncation=truncation)
    counts = Counter(sampler.draw(logits, position).token for position in range(6000))
    assert set(counts) <= set(kept)
    assert chi_square(counts, [w / sum(weights) for w in weights]) < QUANTILE_99_9[len(kept) - 1]


def test_a_low_temperature_leaves_out_only_what_could_not_win():
    """The draw is the one over the whole vocabulary, though few tokens were looked at."""
    generator = torch.Generator().manual_seed(0)
    for position in range(200):
        logits = torch.randn(500, generator=generator) * 8
        scaled = (logits / 0.7).double() + gumbel(5, position, torch.arange(500))
        assert Sampler(seed=5, temperature=0.7).draw(logits, position).token == int(scaled.argmax())


def model(text):
    """A tiny target: logits that depend on the last two tokens."""
    generator = torch.Generator().manual_seed(hash(tuple(text[-2:])) % 1000)
    return torch.randn(VOCAB, generator=generator) * 1.5


def sampler_with_everything(seed, prompt):
    return Sampler(
        seed=seed,
        temperature=0.8,
        truncation=Truncation(top_k=5, top_p=0.95, min_p=0.01),
        processors=[
            LogitBias({1: 0.7, 4: -1.5}),
            RepetitionPenalty(1.3, np.array(prompt, np.int32), VOCAB),
            OccurrencePenalty(0.2, 0.3, VOCAB),
        ],
        logprobs=2,
    )


@settings(max_examples=100, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**64))
def test_every_feature_gives_the_same_text_and_logprobs_over_any_trees(data, seed):
    prompt = [0, 3]
    plain_sampler = sampler_with_everything(seed, prompt)
    plain, text = [], list(prompt)
    for _ in range(12):
        draw = plain_sampler.draw(model(text), len(text))
        plain.append(draw)
        text.append(draw.token)

    sampler = sampler_with_everything(seed, prompt)
    speculative, text = [], list(prompt)
    while len(speculative) < 12:
        tree = data.draw(draft_trees(VOCAB, max_nodes=8))

        def draw_at(node, tree=tree, committed=tuple(text)):
            path = []
            while node != ROOT:
                path.append(int(tree.tokens[node]))
                node = int(tree.parents[node])
            own_path = [*committed, *path[::-1]]
            draw = sampler.draw(model(own_path), len(own_path))
            speculative.append(draw)
            return draw.token

        text += walk(tree, draw_at, lambda token: len(speculative) == 12).tokens
    assert speculative == plain


def test_chi_square_over_runs_with_overlapping_sources():
    """The second token's distribution over many seeds, when several sources hold the same and other tokens."""
    tree = tree_of(
        [(ROOT, 0), (ROOT, 3), (0, 0), (0, 1), (1, 1), (1, 5), (3, 2)],
        [Source.REQUEST, Source.REPOSITORY, Source.EDIT, Source.REPOSITORY, Source.REQUEST, Source.EAGLE3, Source.EDIT],
    )
    counts: Counter[int] = Counter()
    accepted = 0
    runs = 8000
    for seed in range(runs):
        sampler = Sampler(seed=seed, temperature=1.0)
        text: list[int] = []

        def draw_at(node, sampler=sampler, text=text):
            token = sampler.draw(model(text), len(text)).token
            text.append(token)
            return token

        verdict = walk(tree, draw_at, lambda token: False)
        accepted += len(verdict.path)
        if len(text) == 1:
            text.append(sampler.draw(model(text), 1).token)
        counts[text[0] * VOCAB + text[1]] += 1
    first = model([]).softmax(0)
    joint = torch.stack([first[i] * model([i]).softmax(0) for i in range(VOCAB)]).flatten().tolist()
    frequent = [i for i, p in enumerate(joint) if p * runs >= 5]
    rest = [i for i in range(len(joint)) if i not in frequent]
    merged = Counter({rank: counts[i] for rank, i in enumerate(frequent)})
    shares = [joint[i] for i in frequent]
    if rest:
        merged[len(frequent)] = sum(counts[i] for i in rest)
        shares.append(sum(joint[i] for i in rest))
    degrees = len(shares) - 1
    assert accepted > runs / 4  # the draft matters
    assert chi_square(merged, shares) < degrees + 4 * math.sqrt(2 * degrees)


def test_penalties_match_their_definition():
    logits = torch.tensor([2.0, -2.0, 1.0, 1.0, 0.0, 0.5])
    repetition = RepetitionPenalty(2.0, np.array([0, 1], np.int32), VOCAB)
    repetition.advance(3)
    row = logits.clone()
    repetition.apply(row)
    assert row.tolist() == [1.0, -4.0, 1.0, 0.5, 0.0, 0.5]

    occurrence = OccurrencePenalty(0.25, 0.5, VOCAB)
    for token in (2, 2, 5):
        occurrence.advance(token)
    row = logits.clone()
    occurrence.apply(row)
    assert row.tolist() == [2.0, -2.0, 0.0, 1.0, 0.0, -0.25]


def test_logprobs_are_the_models_own():
    logits = torch.tensor([1.0, 2.0, 0.0])
    draw = Sampler(temperature=0, processors=[LogitBias({2: 10.0})], logprobs=2).draw(logits, 0)
    raw = torch.log_softmax(logits, 0).tolist()
    assert draw.token == 2
    assert draw.logprob == pytest.approx(raw[2])
    assert [token for token, _ in draw.top] == [1, 0]
    assert draw.top[0][1] == pytest.approx(raw[1])


@pytest.mark.parametrize("row", [[math.nan, 1.0], [-math.inf, -math.inf]])
def test_nothing_to_draw_is_an_error(row):
    with pytest.raises(EngineError, match="no token can be drawn at position 9"):
        Sampler(temperature=1.0).draw(torch.tensor(row), 9)


def test_logits_are_left_alone():
    logits = torch.tensor([1.0, 2.0, 0.0])
    Sampler(processors=[LogitBias({0: 5.0})]).draw(logits, 0)
    assert logits.tolist() == [1.0, 2.0, 0.0]
