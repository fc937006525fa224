"""Random verify steps over a paged cache."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from agentspec.kernels.ancestor_bits import pack_mask
from agentspec.kernels.paged_tree_attention import NO_WINDOW, PagedBatch, ScoreRules
from tests.kernels.trees import draft_trees


def row_mask(tree, width):
    """`bool[width, width]`: the last committed token, the nodes of `tree`, and padding rows that see themselves."""
    mask = torch.eye(width, dtype=torch.bool)
    mask[: len(tree) + 1, 0] = True
    mask[1 : len(tree) + 1, 1 : len(tree) + 1] = torch.from_numpy(tree.ancestor_mask())
    return mask


@dataclass
class Case:
    query: torch.Tensor
    cache: tuple[torch.Tensor, torch.Tensor]
    batch: PagedBatch
    bits: torch.Tensor
    rules: ScoreRules
    masks: list[torch.Tensor]
    prefixes: list[int]

    @property
    def arguments(self):
        return self.query, self.cache, self.batch, self.bits, self.rules


def make_case(trees, prefixes, *, padding=0, kv_heads=2, groups=1, dim=16, page=1, soft_cap=0.0, window=-1, seed=0):
    """A batch in float64 whose pages are scattered over a cache that is NaN wherever nobody's token lies."""
    generator = torch.Generator().manual_seed(seed)
    width = max(len(tree) for tree in trees) + 1 + padding
    lengths = [prefix + width for prefix in prefixes]
    pages = [-(-length // page) for length in lengths]
    indices = torch.randperm(sum(pages) + 3, generator=generator)[: sum(pages)]
    indptr = torch.tensor([0, *pages]).cumsum(0).int()
    last = torch.tensor([length - (count - 1) * page for length, count in zip(lengths, pages, strict=True)]).int()
    batch = PagedBatch(indptr, indices.int(), last, page)

    def random(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    cache = tuple(
        torch.full(((sum(pages) + 3) * page, kv_heads, dim), torch.nan, dtype=torch.float64) for _ in range(2)
    )
    for slots in batch.slots():
        for one in cache:
            one[slots] = random(len(slots), kv_heads, dim)
    masks = [row_mask(tree, width) for tree in trees]
    return Case(
        random(width * len(trees), kv_heads * groups, dim),
        cache,
        batch,
        pack_mask(torch.stack(masks)).flatten(0, 1),
        ScoreRules(dim**-0.5, soft_cap, window),
        masks,
        prefixes,
    )


@st.composite
def cases(draw, max_nodes=12, max_prefix=20, windows=True, **fixed):
    trees = draw(st.lists(draft_trees(4, max_nodes=max_nodes), min_size=1, max_size=3))
    return make_case(
        trees,
        [draw(st.integers(0, max_prefix)) for _ in trees],
        padding=draw(st.integers(0, 3)),
        groups=draw(st.sampled_from([1, 3])),
        page=draw(st.sampled_from([1, 4])),
        soft_cap=draw(st.sampled_from([0.0, 2.0])),
        window=draw(st.sampled_from([NO_WINDOW, 0, 2, 9])) if windows else NO_WINDOW,
        seed=draw(st.integers(0, 999)),
        **fixed,
    )
