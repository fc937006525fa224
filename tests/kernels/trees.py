"""Draft trees for tests."""

import numpy as np
from hypothesis import strategies as st

from agentspec.drafters.tree import ROOT, DraftTree, Source


def tree_of(edges, sources=None):
    """A tree from (parent, token) pairs."""
    parents = np.array([parent for parent, _ in edges], np.int32)
    tokens = np.array([token for _, token in edges], np.int32)
    kinds = np.array(sources if sources is not None else [Source.REQUEST] * len(edges), np.uint8)
    return DraftTree(tokens, parents, np.full(len(edges), 0.5, np.float32), kinds)


@st.composite
def draft_trees(draw, vocab, max_nodes=12):
    """Any valid tree over a small vocabulary, each node from any source."""
    edges: list[tuple[int, int]] = []
    for node in range(draw(st.integers(0, max_nodes))):
        parent = draw(st.integers(ROOT, node - 1))
        taken = {token for above, token in edges if above == parent}
        free = [token for token in range(vocab) if token not in taken]
        if free:
            edges.append((parent, draw(st.sampled_from(free))))
        else:
            edges.append((node - 1, 0))
    sources = [draw(st.sampled_from(list(Source))) for _ in edges]
    return tree_of(edges, sources)
