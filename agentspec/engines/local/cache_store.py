"""Key/value memory of running and finished generations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentspec.engines.local.prefix_cache import CachedText, PrefixCache, common_prefix
from agentspec.errors import OverloadedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from agentspec.engines.local.kv_cache import KVCache, KVPool

_TAKE_OVER_SHARE = 0.75
"""A retained cache is taken over, not copied, when the prompt shares at least this part of its text: what the others
lose by it is little, and no memory is moved."""

_TAKE_OVER_EXCESS = 4
"""Nor is one taken over that is larger by more than this factor than what is needed: others may wait for the rest."""


class CacheStore:
    """Finds memory for new generations, with as much of the prompt in it as any known text has.

    Args:
        pool: all the memory there is.
        retained: most finished caches kept.
    """

    def __init__(self, pool: KVPool, retained: int) -> None:
        self._pool = pool
        self._prefixes = PrefixCache(pool, retained)

    @property
    def used(self) -> int:
        """Slots in use, retained caches included."""
        return self._pool.used

    @property
    def total(self) -> int:
        """Slots there are."""
        return self._pool.total

    @property
    def largest(self) -> int:
        """Slots of the largest cache that can be had."""
        block = self._pool.layout.key_block
        return self._pool.total // block * block

    def fits(self, slots: Sequence[int]) -> bool:
        """Whether caches of these sizes fit when nothing else is held."""
        block = self._pool.layout.key_block
        return sum(-(-need // block) * block for need in slots) <= self._pool.total

    def reserve(
        self, prompt: NDArray[np.int32], slots: Sequence[int], running: Iterable[CachedText]
    ) -> list[KVCache] | None:
        """Caches for the choices of a generation.

        Args:
            prompt: `int32[P]`.
            slots: capacity that each choice needs.
            running: texts being decoded, whose beginnings may be copied.

        Returns:
            One cache per choice, the first with the longest known beginning of the prompt committed; None when there
            is no room now.
        """
        donor, shared = self._longest_prefix(prompt, running)
        donor_retained = donor in self._prefixes.texts
        first = self._take_over(donor, shared, slots)
        caches = [] if first is None else [first]
        for need in slots[len(caches) :]:
            cache = self._allocate(need, spare=donor)
            if cache is None:
                for held in caches:
                    self._pool.release(held)
                return None
            caches.append(cache)
        evicted = donor_retained and donor not in self._prefixes.texts
        if first is None and donor is not None and not evicted:
            caches[0].copy_prefix(donor.cache, shared)
        return caches

    def extend(self, cache: KVCache, prompt: NDArray[np.int32], running: Iterable[CachedText]) -> None:
        """Copy a longer beginning of `prompt` into its cache, where one has become known since it was reserved."""
        donor, shared = self._longest_prefix(prompt, running)
        if donor is not None and shared > cache.length:
            cache.copy_prefix(donor.cache, shared)

    def retain(self, text: CachedText) -> None:
        """Keep the cache of a finished text for later prompts."""
        self._prefixes.retain(text)

    def release(self, cache: KVCache) -> None:
        """Give a cache back."""
        self._pool.release(cache)

    def clear(self) -> None:
        """Give all retained caches back."""
        self._prefixes.clear()

    def _longest_prefix(
        self, prompt: NDArray[np.int32], running: Iterable[CachedText]
    ) -> tuple[CachedText | None, int]:
        # The last token of the prompt must go through the model in any case: its logits are not cached.
        usable = prompt[:-1]
        best: tuple[CachedText | None, int] = (None, 0)
        for text in [*self._prefixes.texts, *running]:
            shared = common_prefix(text.tokens, usable)
            if shared > best[1]:
                best = (text, shared)
        return best

    def _take_over(self, donor: CachedText | None, shared: int, slots: Sequence[int]) -> KVCache | None:
        if donor is None or donor not in self._prefixes.texts or shared < _TAKE_OVER_SHARE * len(donor.tokens):
            return None
        capacity = donor.cache.capacity
        if not slots[0] <= capacity <= _TAKE_OVER_EXCESS * slots[0] or not self.fits([capacity, *slots[1:]]):
            return None
        cache = self._prefixes.take(donor)
        cache.truncate(shared)
        return cache

    def _allocate(self, slots: int, spare: CachedText | None) -> KVCache | None:
        """A cache, after evicting as many retained ones as it takes, `spare` last."""
        while True:
            try:
                return self._pool.allocate(slots)
            except OverloadedError:
                if not self._prefixes.evict_oldest(spare) and not self._prefixes.evict_oldest():
                    return None
