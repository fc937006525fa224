"""Drafters that do what a test tells them."""

import random

import numpy as np

from agentspec.drafters.base import DraftReceipt
from agentspec.drafters.tree import ROOT, DraftTree, Source


class ScriptedSession:
    """Calls `propose(written, budget)` with all tokens committed so far."""

    def __init__(self, propose):
        self._propose = propose
        self.written = []

    def propose(self, budget):
        return self._propose(self.written, budget)

    def commit(self, tokens):
        assert tokens.dtype == np.int32
        assert len(tokens) > 0
        self.written += tokens.tolist()

    def receipt(self):
        return DraftReceipt()


class ScriptedDrafter:
    """A drafter from one function of the tokens written so far."""

    def __init__(self, propose):
        self._propose = propose
        self.requests = []

    def begin(self, request):
        self.requests.append(request)
        return ScriptedSession(self._propose)


def tree_from_edges(edges):
    """A tree from (parent, token, source) triples."""
    parents, tokens, sources = zip(*edges, strict=True) if edges else ((), (), ())
    return DraftTree(
        np.array(tokens, np.int32),
        np.array(parents, np.int32),
        np.full(len(edges), 0.5, np.float32),
        np.array(sources, np.uint8),
    )


def noisy_oracle(truths, vocab_size, seed=0):
    """Drafts from known continuations, with wrong siblings, wrong subtrees and sources that overlap.

    Args:
        truths: token lists; the one that the text so far begins is followed.
    """
    rng = random.Random(seed)

    def propose(written, budget):
        if rng.random() < 0.2:
            return DraftTree.empty()
        matching = [truth for truth in truths if truth[: len(written)] == written]
        rest = matching[0][len(written) :] if matching else []
        edges, trunk = [], ROOT
        for token in rest[: rng.randint(1, min(8, budget.max_depth))]:
            siblings = [rng.randrange(vocab_size) for _ in range(rng.randint(0, 2))]
            children = list(dict.fromkeys([*siblings, token] if rng.random() < 0.9 else siblings))
            rng.shuffle(children)
            nodes = {}
            for child in children:
                nodes[child] = len(edges)
                edges.append((trunk, child, rng.choice(list(Source))))
            if token not in nodes:
                break
            trunk = nodes[token]
        return tree_from_edges(edges[: budget.max_nodes])

    return ScriptedDrafter(propose)
