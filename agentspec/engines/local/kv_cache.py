"""Preallocated key/value memory of single sequences, and the pool that bounds all of them together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from agentspec.errors import OverloadedError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Shape and place of the keys and values of one token, the same for every cache of a model.

    Attributes:
        layers: decoder layers.
        kv_heads: key/value heads of a layer.
        head_dim: width of a head.
        dtype: element type.
        device: where caches live.
        key_block: keys of that many neighbouring slots are stored with the slot as the fastest axis, so that a CPU
            kernel scores a whole vector of slots at once; 1 is the plain row-major layout.
    """

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    key_block: int = 1

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token's keys and values take over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize


class KVCache:
    """Keys and values of one sequence.

    Slots `0 .. length - 1` hold the committed tokens. A forward pass writes its tokens to the slots after them and
    leaves `length` alone; the caller then commits what was accepted with `compact`, or nothing.

    Attributes:
        layout: shape and place of one token.
        capacity: slots, a multiple of `layout.key_block`.
        length: committed tokens.
        k: `[layers, kv_heads, capacity / key_block, head_dim, key_block]`, keys after rotation.
        v: `[layers, kv_heads, capacity, head_dim]`.
    """

    def __init__(self, layout: KVLayout, capacity: int) -> None:
        block = layout.key_block
        blocks = -(-capacity // block)
        self.layout = layout
        self.capacity = blocks * block
        self.length = 0
        heads = (layout.layers, layout.kv_heads)
        self.k = torch.zeros(*heads, blocks, layout.head_dim, block, dtype=layout.dtype, device=layout.device)
        self.v = torch.zeros(*heads, self.capacity, layout.head_dim, dtype=layout.dtype, device=layout.device)

    @property
    def nbytes(self) -> int:
        """Bytes of key/value memory."""
        return self.capacity * self.layout.bytes_per_token

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write new tokens of one layer behind the committed prefix; row-major layouts only (`key_block` 1).

        Args:
            layer: which one.
            keys: `[kv_heads, q, head_dim]`.
            values: `[kv_heads, q, head_dim]`.

        Returns:
            All keys and values so far, `[kv_heads, length + q, head_dim]` each.
        """
        stop = self.length + keys.shape[1]
        k, v = self.k[layer, ..., 0], self.v[layer]
        k[:, self.length : stop] = keys
        v[:, self.length : stop] = values
        return k[:, :stop], v[:, :stop]

    def compact(self, base: int, keep: Tensor) -> None:
        """Commit part of the last forward pass: row `base + keep[i]` moves to slot `base + i`.

        Args:
            base: committed tokens before that pass.
            keep: `int64[A]` on the CPU, tail rows in path order, strictly increasing.
        """
        block = self.layout.key_block
        # Slot by slot: few move, and indexing with tensors takes several times as long. No slot is read after it was
        # written, since every row moves down.
        for target, row in enumerate(keep.tolist(), base):
            source = base + row
            if source != target:
                self.k[:, :, target // block, :, target % block] = self.k[:, :, source // block, :, source % block]
                self.v[:, :, target] = self.v[:, :, source]
        self.length = base + len(keep)

    def truncate(self, length: int) -> None:
        """Forget every committed token from slot `length` on."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate a cache of {self.length} tokens to {length}")
        self.length = length

    def copy_prefix(self, other: KVCache, length: int) -> None:
        """Take over the first `length` committed tokens of `other`, in place of everything held so far."""
        if length > other.length or length > self.capacity:
            raise ValueError(
                f"cannot copy {length} tokens out of {other.length} into a cache of capacity {self.capacity}"
            )
        blocks = -(-length // self.layout.key_block)
        self.k[:, :, :blocks] = other.k[:, :, :blocks]
        self.v[:, :, :length] = other.v[:, :, :length]
        self.length = length


class KVPool:
    """Hands out caches within a limit on the slots of all of them together. Not thread-safe.

    Args:
        layout: the model's.
        total: most slots in use at once.
    """

    def __init__(self, layout: KVLayout, total: int) -> None:
        self.layout = layout
        self.total = total
        self.used = 0

    def allocate(self, capacity: int) -> KVCache:
        """An empty cache with at least `capacity` slots.

        Raises:
            OverloadedError: they do not fit beside the caches in use.
        """
        block = self.layout.key_block
        capacity = -(-capacity // block) * block
        if self.used + capacity > self.total:
            raise OverloadedError(
                f"no key/value memory for {capacity} tokens: {self.used} of {self.total} slots are in use; "
                "retry when a request has finished, or raise engine.kv_tokens"
            )
        cache = KVCache(self.layout, capacity)
        self.used += capacity
        return cache

    def release(self, cache: KVCache) -> None:
        """Give the slots of a cache from `allocate` back; the cache must not be used any more."""
        self.used -= cache.capacity
