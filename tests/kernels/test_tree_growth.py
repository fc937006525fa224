"""The growing draft tree against a naive one that works on whole paths."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.kernels import _native


def after(path, children):
    """Some tokens after a path, best first, and their probabilities; always the same."""
    rng = np.random.default_rng([7, *path])
    return rng.permutation(90)[:children], np.sort(rng.dirichlet(np.ones(children + 1))[:children])[::-1]


class Naive:
    """A tree of paths, each with its probability."""

    def __init__(self, depth, width, children, min_path_prob, level_gain):
        self.bounds = depth, width, children, min_path_prob, level_gain
        self.paths, self.expanded = {}, [()]

    def add_level(self, level):
        depth, width, children, least, gain = self.bounds
        new = {}
        for path in self.expanded:
            for token, prob in zip(*after(path, children), strict=True):
                reached = self.paths.get(path, 1.0) * float(np.float32(prob))
                if reached >= least:
                    new[(*path, int(token))] = reached
        self.paths |= new
        self.expanded = sorted(new, key=lambda path: -new[path])[:width]
        promise = sum(new[path] for path in self.expanded)
        return level < depth and bool(self.expanded) and promise >= gain * (1 + sum(self.paths.values()))


@given(
    depth=st.integers(1, 5),
    width=st.integers(1, 5),
    children=st.integers(1, 5),
    least=st.sampled_from([0.0, 0.01, 0.1, 0.9]),
    gain=st.sampled_from([0.0, 0.1, 0.3, 2.0]),
)
def test_it_is_the_naive_tree(depth, width, children, least, gain):
    naive = Naive(depth, width, children, least, gain)
    tree = _native.TreeGrowth(depth=depth, width=width, children=children, min_path_prob=least, level_gain=gain)
    rows, drafted = [()], []  # paths of the nodes expanded last, and of those before
    while True:
        ids, probs = zip(*(after(path, children) for path in rows), strict=True)
        further = tree.add_level(np.array(ids, np.int64), np.array(probs, np.float32))
        assert further == naive.add_level(len(rows[0]) + 1)
        paths = []
        for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
            paths.append((*(paths[parent] if parent >= 0 else ()), token))
        assert sorted(paths) == sorted(naive.paths)
        assert not paths or float(tree.probs[0]) == pytest.approx(naive.paths[paths[0]])
        if not further:
            break
        before = rows
        rows = [(*before[source], token) for source, token in zip(tree.sources, tree.following.tolist(), strict=True)]
        assert rows == naive.expanded
        columns = [*drafted, *rows]
        assert tree.mask.tolist() == [[row[: len(column)] == column for column in columns] for row in rows]
        drafted = columns


def test_what_does_not_fit_is_refused():
    tree = _native.TreeGrowth(depth=2, width=2, children=2, min_path_prob=0.0, level_gain=0.0)
    with pytest.raises(ValueError, match="differ in shape"):
        tree.add_level(np.zeros((1, 2), np.int64), np.zeros((1, 3), np.float32))
    with pytest.raises(ValueError, match="a row for each node"):
        tree.add_level(np.zeros((2, 2), np.int64), np.zeros((2, 2), np.float32))
    with pytest.raises(ValueError, match="levels, nodes and children"):
        _native.TreeGrowth(depth=0, width=2, children=2, min_path_prob=0.0, level_gain=0.0)
