"""The stand-ins for sgl_kernel against naive models."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.drafters.tree import DraftTree
from agentspec.kernels.sgl_cpu import attention, noise, slots, trees


def random_parents(rng: np.random.Generator, nodes: int) -> list[int]:
    return [-1, *(int(rng.integers(0, node)) for node in range(1, nodes))]


def draft_tree(parents: list[int]) -> DraftTree:
    nodes = len(parents) - 1
    return DraftTree(
        np.arange(nodes, dtype=np.int32),
        np.array(parents[1:], np.int32) - 1,
        np.ones(nodes, np.float32),
        np.zeros(nodes, np.uint8),
    )


seeds = st.integers(0, 2**31)


@given(seeds, st.integers(1, 3), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_trees_from_masks_are_the_trees_that_made_them(seed: int, batch: int, nodes: int) -> None:
    rng = np.random.default_rng(seed)
    parents = [random_parents(rng, nodes) for _ in range(batch)]
    masks = np.zeros((batch, nodes, nodes), bool)
    for mask, row in zip(masks, parents, strict=True):
        mask[:, 0] = True
        mask[1:, 1:] = draft_tree(row).ancestor_mask()
    lengths = torch.from_numpy(rng.integers(0, 50, batch))
    positions = torch.zeros(batch * nodes, dtype=torch.int64)
    index, child, sibling = torch.full((3, batch, nodes), -7)
    trees.reconstruct_indices_from_tree_mask(
        torch.from_numpy(masks), lengths, positions, index, child, sibling, batch, nodes
    )
    for b, row in enumerate(parents):
        tree = draft_tree(row)
        first, following = tree.links()
        assert child[b].tolist() == [node + 1 if node >= 0 else -1 for node in first.tolist()]
        assert sibling[b].tolist() == [node + 1 if node >= 0 else -1 for node in following.tolist()]
        assert positions.view(batch, nodes)[b].tolist() == [int(lengths[b] + d) for d in [0, *tree.depths().tolist()]]
    assert index.flatten().tolist() == list(range(batch * nodes))


@given(seeds, st.integers(1, 3), st.integers(1, 10), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_the_walk_follows_the_target(seed: int, batch: int, nodes: int, vocabulary: int) -> None:
    rng = np.random.default_rng(seed)
    parents = [random_parents(rng, nodes) for _ in range(batch)]
    links = [trees.links_of(row) for row in parents]
    tokens = torch.from_numpy(rng.integers(0, vocabulary, (batch, nodes)))
    wanted = torch.from_numpy(rng.integers(0, vocabulary, (batch, nodes)))
    predicts = torch.zeros(batch * nodes, dtype=torch.int32)
    accepted = torch.full((batch, nodes), -1, dtype=torch.int32)
    counts = torch.zeros(batch, dtype=torch.int32)
    trees.verify_tree_greedy_cpu(
        predicts,
        accepted,
        counts,
        tokens,
        torch.arange(batch * nodes).view(batch, nodes),
        torch.tensor([child for child, _ in links]),
        torch.tensor([sibling for _, sibling in links]),
        wanted,
    )
    for b, row in enumerate(parents):
        path = [0]
        while True:
            matching = [n for n in range(1, nodes) if row[n] == path[-1] and tokens[b, n] == wanted[b, path[-1]]]
            if not matching:
                break
            path.append(matching[0])
        assert accepted[b, : len(path)].tolist() == [b * nodes + node for node in path]
        assert (accepted[b, len(path) :] == -1).all()
        assert int(counts[b]) == len(path) - 1
        assert [int(predicts[b * nodes + node]) for node in path] == [int(wanted[b, node]) for node in path]


def naive_attention(q, k, v, allowed, scale, cap):
    groups = q.shape[1] // k.shape[1]
    out = torch.empty(q.shape[0], q.shape[1], v.shape[-1], dtype=torch.float64)
    for head in range(q.shape[1]):
        logits = q[:, head].double() @ k[:, head // groups].double().T * scale
        logits = cap * torch.tanh(logits / cap) if cap else logits
        out[:, head] = logits.masked_fill(~allowed, -math.inf).softmax(-1) @ v[:, head // groups].double()
    return out


class Cache:
    """Keys and values of two requests, scattered over a paged cache."""

    def __init__(self, seed: int, prefixes: list[int], rows: list[int]) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.prefixes, self.rows = prefixes, rows
        self.buffers = torch.randn(2, 64, 2, 8, generator=generator)
        self.slots = torch.randperm(64, generator=generator).view(2, 32).int()
        self.q = torch.randn(sum(rows), 4, 8, generator=generator)
        self.k, self.v = torch.randn(2, sum(rows), 2, 8, generator=generator)
        self.starts = torch.tensor([0, rows[0]])
        self.lengths = torch.tensor([p + r for p, r in zip(prefixes, rows, strict=True)])

    def full(self, request: int) -> tuple[torch.Tensor, torch.Tensor]:
        old = self.slots[request, : self.prefixes[request]].long()
        new = slice(int(self.starts[request]), int(self.starts[request]) + self.rows[request])
        return torch.cat((self.buffers[0][old], self.k[new])), torch.cat((self.buffers[1][old], self.v[new]))


@pytest.mark.parametrize("cap", [0.0, 5.0])
@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("masked", [False, True])
def test_extend_attention(cap: float, window: int, masked: bool) -> None:
    cache = Cache(0, [5, 0], [4, 3])
    rng = np.random.default_rng(0)
    tails = []
    for rows in cache.rows:
        tail = torch.ones(rows, rows, dtype=torch.bool).tril()
        if masked:
            tail[1:, 1:] = torch.from_numpy(draft_tree(random_parents(rng, rows)).ancestor_mask())
        tails.append(tail)
    out = torch.empty(7, 4, 8)
    attention.extend_attention_cpu(
        cache.q,
        cache.k,
        cache.v,
        out,
        *cache.buffers,
        1.0,
        1.0,
        cache.slots,
        torch.tensor([0, 1]),
        cache.lengths,
        torch.tensor(cache.rows),
        cache.starts,
        4,
        0.3,
        cap,
        False,
        window,
        None,
        None,
        torch.cat([tail.flatten() for tail in tails]) if masked else None,
        True,
    )
    for request, tail in enumerate(tails):
        keys, values = cache.full(request)
        rows, length = cache.rows[request], len(keys)
        allowed = torch.cat((torch.ones(rows, length - rows, dtype=torch.bool), tail), 1)
        if window:
            query = torch.arange(length - rows, length).view(-1, 1)
            allowed &= torch.arange(length) > query - window
        new = slice(int(cache.starts[request]), int(cache.starts[request]) + rows)
        expected = naive_attention(cache.q[new], keys, values, allowed, 0.3, cap)
        torch.testing.assert_close(out[new].double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [0, 4])
def test_decode_attention_writes_then_reads_the_cache(window: int) -> None:
    cache = Cache(1, [9, 2], [1, 1])
    keys_and_values = [cache.full(request) for request in (0, 1)]
    places = torch.stack([cache.slots[request, cache.prefixes[request]] for request in (0, 1)]).long()
    out = torch.empty(2, 4, 8)
    attention.decode_attention_cpu(
        cache.q,
        *cache.buffers,
        1.0,
        1.0,
        out,
        cache.k,
        cache.v,
        places,
        torch.empty(0),
        cache.slots,
        torch.tensor([0, 1]),
        cache.lengths,
        0.3,
        0.0,
        False,
        window,
        None,
        None,
    )
    assert torch.equal(cache.buffers[0][places], cache.k)
    assert torch.equal(cache.buffers[1][places], cache.v)
    for request, (keys, values) in enumerate(keys_and_values):
        first = max(0, len(keys) - window) if window else 0
        allowed = torch.ones(1, len(keys) - first, dtype=torch.bool)
        expected = naive_attention(cache.q[request : request + 1], keys[first:], values[first:], allowed, 0.3, 0)
        torch.testing.assert_close(out[request : request + 1].double(), expected, atol=1e-5, rtol=1e-5)


def test_attention_refuses_what_it_cannot_do() -> None:
    with pytest.raises(NotImplementedError, match="sinks"):
        attention.decode_attention_cpu(*[torch.empty(0)] * 13, 1.0, 0.0, False, 0, None, torch.empty(1))


def test_slots_scatter_and_gather_are_inverse() -> None:
    table = torch.zeros(3, 16, dtype=torch.int32)
    requests, start, end = torch.tensor([2, 0]), torch.tensor([1, 4]), torch.tensor([4, 6])
    pieces = torch.tensor([10, 11, 12, 20, 21])
    slots.assign_req_to_token_pool_cpu(requests, table, start, end, pieces, 16)
    assert table[2, 1:4].tolist() == [10, 11, 12]
    assert table[0, 4:6].tolist() == [20, 21]
    assert int(table.sum()) == 74
    back = torch.zeros(5, dtype=torch.int64)
    slots.assign_extend_cache_locs_cpu(requests, table, start, end, back, 16)
    assert back.tolist() == pieces.tolist()


def test_draft_slots_follow_the_prefix() -> None:
    table = torch.arange(48, dtype=torch.int32).view(3, 16)
    requests, lengths = torch.tensor([1, 2]), torch.tensor([3, 5])
    flat = torch.zeros(2 * 2 * 3, dtype=torch.int64)
    slots.assign_draft_cache_locs_contiguous_cpu(requests, table, lengths, flat, 16, 2, 3)
    assert flat.view(2, 6).tolist() == [list(range(19, 25)), list(range(37, 43))]
    pages = slots.build_draft_decode_metadata_cpu(table, requests, lengths, 2, 3, 16)
    assert pages.tolist() == [
        [16, 17, 18, 19, 20, 21, 0, 0],
        [16, 17, 18, 22, 23, 24, 0, 0],
        [32, 33, 34, 35, 36, 37, 38, 39],
        [32, 33, 34, 35, 36, 40, 41, 42],
    ]


def test_accepted_slots_and_bonus_tokens() -> None:
    packed = torch.zeros(4, dtype=torch.int64)
    slots.fill_accept_out_cache_loc_cpu(torch.tensor([[0, 2], [-1, 3]]), torch.tensor([5, 6, 7, 8]), packed)
    assert packed.tolist() == [5, 7, 8, 0]
    bonus = torch.zeros(2, dtype=torch.int32)
    slots.fill_bonus_tokens_cpu(torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([2, 3]), bonus, 3)
    assert bonus.tolist() == [2, 6]


def test_cache_rows_move_even_when_they_overlap() -> None:
    layers = [torch.arange(12, dtype=torch.float32).view(6, 2), torch.arange(18, dtype=torch.bfloat16).view(6, 3)]
    expected = [layer.clone() for layer in layers]
    source, target = torch.tensor([1, 3, 2]), torch.tensor([0, 1, 3])
    for layer in expected:
        layer[target] = layer[source].clone()
    pointers = torch.tensor([layer.data_ptr() for layer in layers], dtype=torch.uint64)
    strides = torch.tensor([layer.stride(0) * layer.element_size() for layer in layers])
    slots.copy_all_layer_kv_cache_cpu(pointers, strides, target, source)
    assert all(torch.equal(layer, one) for layer, one in zip(layers, expected, strict=True))


def test_input_ids_rotate_within_each_request() -> None:
    ids = torch.tensor([1, 2, 3, 4, 5, 6])
    slots.rotate_input_ids_cpu(ids, torch.tensor([0, 3, 5]), torch.tensor([3, 2, 0]), torch.tensor([[7], [8], [9]]))
    assert ids.tolist() == [2, 3, 7, 5, 8, 6]


def reference_murmur3(key: bytes) -> int:
    """MurmurHash3_x86_32 with seed 0 over whole blocks, in plain integers."""
    state = 0
    for place in range(0, len(key), 4):
        block = int.from_bytes(key[place : place + 4], "little") * 0xCC9E2D51 & 0xFFFFFFFF
        block = ((block << 15 | block >> 17) & 0xFFFFFFFF) * 0x1B873593 & 0xFFFFFFFF
        state ^= block
        state = ((state << 13 | state >> 19) & 0xFFFFFFFF) * 5 + 0xE6546B64 & 0xFFFFFFFF
    state ^= len(key)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = (state ^ state >> shift) * factor & 0xFFFFFFFF
    return state ^ state >> 16


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**20))
@settings(max_examples=100, deadline=None)
def test_noise_is_murmur3(seed: int, position: int, column: int) -> None:
    key = seed.to_bytes(8, "little") + position.to_bytes(4, "little") + column.to_bytes(4, "little")
    seeds = torch.from_numpy(np.array([seed, seed], np.uint64))
    hashes = noise.murmur_hash32_cpu(seeds, torch.tensor([position, position + 1]), torch.tensor([0, column]))
    assert hashes.dtype == torch.uint32
    assert hashes[0, 1].item() == reference_murmur3(key)
