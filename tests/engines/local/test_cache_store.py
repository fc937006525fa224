import numpy as np
import pytest
import torch

from agentspec.engines.local.cache_store import CacheStore
from agentspec.engines.local.kv_cache import KVLayout, KVPool
from agentspec.engines.local.prefix_cache import CachedText

LAYOUT = KVLayout(1, 1, 2, torch.float32, torch.device("cpu"))


@pytest.fixture
def pool():
    return KVPool(LAYOUT, 100)


def tokens(*values):
    return np.array(values, np.int32)


def finished(store, pool, text, slots=20):
    """Reserve, fill with recognisable values, and retain."""
    caches = store.reserve(text, [slots], [])
    assert caches is not None
    cache = caches[0]
    cache.v[:, :, : len(text)] = torch.from_numpy(text).float()[:, None]
    cache.length = len(text)
    store.retain(CachedText(text, cache))
    return cache


def test_the_longest_common_prefix_is_reused(pool):
    store = CacheStore(pool, retained=4)
    finished(store, pool, tokens(1, 2, 9, 9))
    finished(store, pool, tokens(1, 2, 3, 8, 8, 8))
    [cache] = store.reserve(tokens(1, 2, 3, 4, 5), [20], [])
    assert cache.length == 3
    assert cache.v[0, 0, :3, 0].tolist() == [1, 2, 3]


def test_the_last_token_is_never_reused(pool):
    store = CacheStore(pool, retained=4)
    finished(store, pool, tokens(1, 2, 3, 4))
    [cache] = store.reserve(tokens(1, 2, 3, 4), [20], [])
    assert cache.length == 3


def test_a_cache_that_the_prompt_goes_on_from_is_taken_over(pool):
    store = CacheStore(pool, retained=4)
    held = finished(store, pool, tokens(1, 2, 3, 4))
    [cache] = store.reserve(tokens(1, 2, 3, 4, 5, 6), [20], [])
    assert cache is held
    assert store.used == 20


def test_a_cache_of_which_little_is_shared_is_copied(pool):
    store = CacheStore(pool, retained=4)
    held = finished(store, pool, tokens(1, 2, 3, 4))
    [cache] = store.reserve(tokens(1, 2, 9), [20], [])
    assert cache is not held
    assert cache.length == 2
    assert store.used == 40


def test_a_cache_too_small_to_go_on_is_copied(pool):
    store = CacheStore(pool, retained=4)
    finished(store, pool, tokens(1, 2, 3, 4), slots=10)
    [cache] = store.reserve(tokens(1, 2, 3, 4, 5), [30], [])
    assert cache.capacity == 30
    assert cache.length == 4


def test_a_cache_much_too_large_is_not_held_for_a_short_request(pool):
    store = CacheStore(pool, retained=4)
    finished(store, pool, tokens(1, 2, 3, 4), slots=60)
    [cache] = store.reserve(tokens(1, 2, 3, 4, 5), [10], [])
    assert cache.capacity == 10
    assert cache.length == 4


def test_a_cache_is_not_taken_over_where_the_other_choices_would_not_fit_beside_it(pool):
    store = CacheStore(pool, retained=4)
    finished(store, pool, tokens(1, 2, 3, 4), slots=70)
    caches = store.reserve(tokens(1, 2, 3, 4, 5), [45, 45], [])
    assert caches is not None
    assert store.used == 90


def test_running_texts_are_copied_from(pool):
    store = CacheStore(pool, retained=4)
    [busy] = store.reserve(tokens(1, 2, 3), [20], [])
    busy.length = 3
    [cache] = store.reserve(tokens(1, 2, 7), [20], [CachedText(tokens(1, 2, 3), busy)])
    assert cache is not busy
    assert cache.length == 2


def test_retained_caches_are_bounded_oldest_out_first(pool):
    store = CacheStore(pool, retained=2)
    for first in (1, 2, 3):
        finished(store, pool, tokens(first, 0, 0, 0))
    assert store.used == 40
    assert store.reserve(tokens(1, 0, 5), [10], [])[0].length == 0
    assert store.reserve(tokens(2, 0, 5), [10], [])[0].length == 2


def test_retained_caches_make_room(pool):
    store = CacheStore(pool, retained=8)
    for first in (1, 2, 3):
        finished(store, pool, tokens(first, 0, 0, 0), slots=30)
    # 10 slots are free and 60 are needed: the two oldest go, the donor stays.
    [cache] = store.reserve(tokens(1, 0, 9), [60], [])
    assert cache.length == 2
    assert store.used == 90
    store.release(cache)
    assert store.used == 30


def test_even_the_donor_makes_room(pool):
    store = CacheStore(pool, retained=8)
    finished(store, pool, tokens(1, 2, 3), slots=30)
    [cache] = store.reserve(tokens(1, 2, 9), [90], [])
    assert cache.length == 0
    assert store.used == 90


def test_no_room_gives_everything_back(pool):
    store = CacheStore(pool, retained=8)
    [busy] = store.reserve(tokens(1, 2), [50], [])
    assert store.reserve(tokens(1, 2), [30, 30], []) is None
    assert store.used == 50
    store.release(busy)
    assert store.used == 0


def test_a_text_that_goes_on_from_another_replaces_it(pool):
    store = CacheStore(pool, retained=8)
    finished(store, pool, tokens(1, 2))
    [other] = store.reserve(tokens(9, 9), [20], [])
    other.length = 3
    store.retain(CachedText(tokens(1, 2, 3), other))
    assert store.used == 20


def test_what_can_never_fit(pool):
    store = CacheStore(pool, retained=8)
    assert store.fits([50, 50])
    assert not store.fits([50, 51])
    blocked = CacheStore(KVPool(KVLayout(1, 1, 2, torch.float32, torch.device("cpu"), key_block=16), 100), 8)
    assert blocked.largest == 96
    assert not blocked.fits([97])
