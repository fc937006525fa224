"""Key/value memory against plain Python lists."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.engines.local.kv_cache import KVCache, KVLayout, KVPool
from agentspec.errors import OverloadedError

BLOCKS = [1, 16]


def layout(key_block: int, dtype=torch.float32) -> KVLayout:
    return KVLayout(2, 3, 4, dtype, torch.device("cpu"), key_block)


def fill(cache: KVCache, start: int, values: list[float]) -> None:
    """Give the slots from `start` on recognisable keys and values: the number itself, and its negative."""
    block = cache.layout.key_block
    for slot, value in enumerate(values, start):
        cache.k[:, :, slot // block, :, slot % block] = value
        cache.v[:, :, slot] = -value


def content(cache: KVCache) -> list[float]:
    """The number that each committed slot holds, after checking that all its elements agree."""
    block = cache.layout.key_block
    held = []
    for slot in range(cache.length):
        key, value = cache.k[:, :, slot // block, :, slot % block], cache.v[:, :, slot]
        number = float(key[0, 0, 0])
        assert (key == number).all()
        assert (value == -number).all()
        held.append(number)
    return held


@pytest.mark.parametrize("key_block", BLOCKS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_commits_and_rollbacks_equal_a_list(key_block, data):
    cache = KVCache(layout(key_block), 64)
    model: list[float] = []
    counter = 1.0
    for _ in range(data.draw(st.integers(1, 6))):
        free = cache.capacity - len(model)
        tail = [counter + i for i in range(data.draw(st.integers(0, min(20, free))))]
        counter += len(tail)
        fill(cache, cache.length, tail)
        keep = sorted(data.draw(st.sets(st.integers(0, len(tail) - 1)))) if tail else []
        cache.compact(len(model), torch.tensor(keep, dtype=torch.int64))
        model += [tail[i] for i in keep]
        assert content(cache) == model
        if data.draw(st.booleans()):
            length = data.draw(st.integers(0, len(model)))
            cache.truncate(length)
            model = model[:length]
            assert content(cache) == model


@pytest.mark.parametrize("key_block", BLOCKS)
@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 30])
def test_a_copied_prefix_is_its_own(key_block, length):
    source, target = KVCache(layout(key_block), 32), KVCache(layout(key_block), 48)
    fill(source, 0, [float(i + 1) for i in range(30)])
    source.length = 30
    target.copy_prefix(source, length)
    fill(source, 0, [99.0] * 30)
    assert content(target) == [float(i + 1) for i in range(length)]


def test_impossible_lengths_are_refused():
    cache, small = KVCache(layout(16), 32), KVCache(layout(16), 16)
    cache.length = 20
    with pytest.raises(ValueError, match="cannot truncate a cache of 20 tokens to 21"):
        cache.truncate(21)
    with pytest.raises(ValueError, match="cannot copy 21 tokens out of 20"):
        KVCache(layout(16), 64).copy_prefix(cache, 21)
    with pytest.raises(ValueError, match="into a cache of capacity 16"):
        small.copy_prefix(cache, 17)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_is_what_is_said(dtype):
    cache = KVCache(layout(16, dtype), 33)
    assert cache.capacity == 48
    assert cache.nbytes == cache.k.nbytes + cache.v.nbytes == 48 * cache.layout.bytes_per_token


@settings(max_examples=50, deadline=None)
@given(steps=st.lists(st.one_of(st.integers(1, 70), st.none()), max_size=30))
def test_the_pool_never_exceeds_its_limit_and_loses_nothing(steps):
    pool = KVPool(layout(16), 128)
    held: list[KVCache] = []
    for capacity in steps:
        if capacity is None:
            if held:
                pool.release(held.pop())
            continue
        rounded = -(-capacity // 16) * 16
        if pool.used + rounded > 128:
            with pytest.raises(OverloadedError, match=r"engine.kv_tokens"):
                pool.allocate(capacity)
        else:
            held.append(pool.allocate(capacity))
            assert held[-1].length == 0
        assert pool.used == sum(cache.capacity for cache in held) <= 128
    for cache in held:
        pool.release(cache)
    assert pool.used == 0
