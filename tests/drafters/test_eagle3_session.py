"""The head's session against a naive one that keeps nothing."""

import math

import pytest
import torch
from hypothesis import given as examples
from hypothesis import settings
from hypothesis import strategies as st

from agentspec.drafters.eagle3 import session as session_module
from agentspec.drafters.eagle3.session import Growth
from agentspec.drafters.tree import ROOT, Source
from tests.drafters.tiny_heads import HIDDEN, VOCAB, begin, tiny_embedding, tiny_head


def naive_probs(head, embedding, features, following, path):
    """`[draft_vocab]`: what follows `path` after the text, from scratch: every row attends as the head does."""
    config = head.config
    rows = [(head.fuse(features[i]), following[i], i) for i in range(len(following))]
    streams = []
    keys, values = [], []
    pending = [*rows, *((None, token, len(rows) + i) for i, token in enumerate(path))]
    for given, token, position in pending:
        stream = streams[-1] if given is None else given
        q, k, v = head.project(embedding[token], stream, torch.tensor(position))
        keys.append(k)
        values.append(v)
        out = []
        for h in range(config.heads):
            g = h // (config.heads // config.kv_heads)
            scores = torch.stack([q[h] @ key[g] / math.sqrt(config.head_dim) for key in keys]).softmax(0)
            out.append(sum(s * value[g] for s, value in zip(scores, values, strict=True)))
        streams.append(head.merge(torch.cat(out), stream))
    return head.logits(streams[-1]).softmax(-1)


@settings(max_examples=15, deadline=None)
@examples(
    seed=st.integers(0, 10**6),
    cuts=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    depth=st.integers(1, 4),
    width=st.integers(1, 4),
    children=st.integers(1, 4),
)
def test_every_node_has_the_probability_that_its_path_gives_it(seed, cuts, depth, width, children):
    head, embedding = tiny_head(seed % 7), tiny_embedding()
    torch.manual_seed(seed)
    length = sum(cuts)
    features = torch.randn(length, 3 * HIDDEN)
    following = torch.randint(0, VOCAB, (length,))
    session = begin(head, embedding, Growth(depth, width, children, min_path_prob=0.0, level_gain=0.0))
    start = 0
    for cut in cuts:
        session.read(features[start : start + cut], following[start : start + cut])
        session.draft()  # drafting leaves no trace
        start += cut
    tree = session.draft()
    tree.validate(max_nodes=1000, max_depth=depth)
    assert set(tree.source.tolist()) == {Source.EAGLE3}
    paths = {ROOT: []}
    probs = {}
    draft_of = {int(token): at for at, token in enumerate(head.draft_to_target)}
    for node in range(len(tree)):
        parent, token = int(tree.parents[node]), int(tree.tokens[node])
        if parent not in probs:
            probs[parent] = naive_probs(head, embedding, features, following, paths[parent])
        assert float(tree.prob[node]) == pytest.approx(float(probs[parent][draft_of[token]]), rel=1e-4, abs=1e-6)
        paths[node] = [*paths[parent], token]
    # Of each expanded node, the likeliest tokens and no others.
    for parent, prob in probs.items():
        found = [float(tree.prob[node]) for node in range(len(tree)) if tree.parents[node] == parent]
        assert found == pytest.approx(prob.topk(len(found)).values.tolist(), rel=1e-4)
        assert len(found) == children


def test_unlikely_paths_are_not_drafted():
    head, embedding = tiny_head(), tiny_embedding()
    session = begin(head, embedding, Growth(depth=4, width=8, children=8, min_path_prob=0.15, level_gain=0.0))
    session.read(torch.randn(3, 3 * HIDDEN), torch.tensor([1, 2, 3]))
    tree = session.draft()
    assert len(tree)
    assert tree.path_probabilities().min() >= 0.15


def test_a_level_that_promises_too_little_is_not_computed():
    head, embedding = tiny_head(), tiny_embedding()
    features, following = torch.randn(3, 3 * HIDDEN), torch.tensor([1, 2, 3])

    def deepest(gain):
        session = begin(head, embedding, Growth(depth=4, width=2, children=2, min_path_prob=0, level_gain=gain))
        session.read(features, following)
        return int(session.draft().depths().max())

    assert deepest(0.0) == 4
    assert deepest(10.0) == 1


def test_nothing_read_nothing_drafted():
    assert len(begin(tiny_head(), tiny_embedding(), Growth()).draft()) == 0


def test_a_long_text_is_forgotten_from_its_beginning(monkeypatch):
    monkeypatch.setattr(session_module, "WINDOW", 8)
    head, embedding = tiny_head(), tiny_embedding()
    torch.manual_seed(0)
    features, following = torch.randn(40, 3 * HIDDEN), torch.randint(0, VOCAB, (40,))
    growth = Growth(depth=2, width=2, children=3, min_path_prob=0, level_gain=0)
    session = begin(head, embedding, growth)
    for at in range(40):
        session.read(features[at : at + 1], following[at : at + 1])
    long = session.draft()
    assert session._runner.length <= 2 * 8 + growth.slots + 16
    # The same text handed over at once keeps the window alone, at its own positions.
    short = begin(head, embedding, growth)
    short.read(features, following)
    expected = begin(head, embedding, growth)
    expected.read(features[32:], following[32:], skipped=32)
    assert short.draft().prob.tolist() == expected.draft().prob.tolist()
    assert len(long) == len(expected.draft())
