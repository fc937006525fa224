import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from agentspec.drafters.tree import ROOT
from agentspec.kernels.tree_attention import tree_attention
from agentspec.kernels.tree_mask import accepted_rows, verify_rows
from tests.kernels.trees import draft_trees, tree_of


def full_mask(rows):
    return torch.ones(len(rows.tokens), len(rows.tokens), dtype=torch.bool).tril() if rows.mask is None else rows.mask


@given(tree=draft_trees(5))
def test_rows_see_the_last_token_and_their_own_ancestors(tree):
    rows = verify_rows(tree, last_token=77, position=40)
    assert rows.tokens.tolist() == [77, *tree.tokens.tolist()]
    mask = full_mask(rows)
    for node in range(-1, len(tree)):
        line = {0}
        above, depth = node, 0
        while above != ROOT:
            line.add(above + 1)
            above, depth = int(tree.parents[above]), depth + 1
        assert set(torch.nonzero(mask[node + 1])[:, 0].tolist()) == line
        assert int(rows.positions[node + 1]) == 40 + depth


def test_a_chain_is_causal():
    assert verify_rows(tree_of([(ROOT, 1), (0, 2), (1, 3)]), 0, 0).mask is None
    assert verify_rows(tree_of([(ROOT, 1), (0, 2), (0, 3)]), 0, 0).mask is not None


def test_accepted_rows_start_with_the_last_token():
    assert accepted_rows([]).tolist() == [0]
    assert accepted_rows([0, 3, 4]).tolist() == [0, 1, 4, 5]


@settings(deadline=None)
@given(tree=draft_trees(5), prefix=st.integers(0, 9), groups=st.integers(1, 3))
def test_reference_attention_equals_full_mask_attention(tree, prefix, groups):
    generator = torch.Generator().manual_seed(len(tree) * 100 + prefix)
    rows = verify_rows(tree, 0, prefix)
    count, kv_heads, dim = len(rows.tokens), 2, 8

    def random(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    query = random(kv_heads * groups, count, dim)
    keys, values = random(kv_heads, prefix + count, dim), random(kv_heads, prefix + count, dim)
    visible = torch.cat([torch.ones(count, prefix, dtype=torch.bool), full_mask(rows)], dim=1)
    expected = scaled_dot_product_attention(query[None], keys[None], values[None], attn_mask=visible, enable_gqa=True)[
        0
    ]
    got = tree_attention(
        query, (keys[:, :prefix], values[:, :prefix]), (keys[:, prefix:], values[:, prefix:]), full_mask(rows)
    )
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
