"""Key/value caches of finished sequences, kept for prompts that begin like them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from agentspec.engines.local.kv_cache import KVCache, KVPool


def common_prefix(one: NDArray[np.int32], other: NDArray[np.int32]) -> int:
    """Number of leading tokens that two texts share."""
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if len(different) else length


@dataclass(frozen=True, slots=True, eq=False)
class CachedText:
    """A cache and the text it holds.

    Attributes:
        tokens: `int32[L]`, one per committed slot.
        cache: keys and values of these tokens.
    """

    tokens: NDArray[np.int32]
    cache: KVCache


class PrefixCache:
    """A bounded set of retained caches, the least recently retained evicted first.

    Args:
        pool: where the caches came from and go back to.
        limit: most caches kept.
    """

    def __init__(self, pool: KVPool, limit: int) -> None:
        self._pool = pool
        self._limit = limit
        self._texts: list[CachedText] = []

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def texts(self) -> tuple[CachedText, ...]:
        """What is retained, the oldest first."""
        return tuple(self._texts)

    def retain(self, text: CachedText) -> None:
        """Keep a cache. One whose text only begins this one is dropped, and the oldest ones beyond the limit."""
        length = len(text.tokens)
        for held in self.texts:
            if len(held.tokens) <= length and common_prefix(held.tokens, text.tokens) == len(held.tokens):
                self._drop(held)
        self._texts.append(text)
        while len(self._texts) > self._limit:
            self._drop(self._texts[0])

    def take(self, text: CachedText) -> KVCache:
        """Hand a retained cache over to a new owner."""
        self._texts.remove(text)
        return text.cache

    def evict_oldest(self, spare: CachedText | None = None) -> bool:
        """Release the oldest cache other than `spare`; False when there is none."""
        for held in self._texts:
            if held is not spare:
                self._drop(held)
                return True
        return False

    def clear(self) -> None:
        """Release every cache."""
        while self.evict_oldest():
            pass

    def _drop(self, text: CachedText) -> None:
        self._texts.remove(text)
        self._pool.release(text.cache)
