"""Random verify steps of a given shape."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from agentspec.kernels.ancestor_bits import pack_mask
from agentspec.kernels.paged_tree_attention import NO_WINDOW, PagedBatch, ScoreRules


@dataclass(frozen=True, slots=True)
class Shape:
    """A verify step.

    Attributes:
        width: rows per request, the root included.
        batch: requests.
        context: committed tokens of every request.
        heads: query heads.
        kv_heads: key heads.
        head_dim: of a head.
    """

    width: int
    batch: int
    context: int
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128

    @property
    def cache_elements(self) -> int:
        """Elements of keys and values that attention must read."""
        return 2 * self.batch * (self.context + self.width) * self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class VerifyStep:
    """Inputs of the attention of one layer in one verify step; fields as for `paged_tree_attention`."""

    shape: Shape
    query: torch.Tensor
    cache: tuple[torch.Tensor, torch.Tensor]
    batch: PagedBatch
    masks: torch.Tensor
    bits: torch.Tensor
    rules: ScoreRules

    @property
    def row_indptr(self) -> torch.Tensor:
        """`int32[B + 1]`: first row of every request."""
        step = self.shape.width
        return torch.arange(0, (self.shape.batch + 1) * step, step, dtype=torch.int32, device=self.query.device)


def random_masks(batch: int, width: int, generator: torch.Generator) -> torch.Tensor:
    """`bool[B, W, W]`: trees in which each node hangs on one of the four rows before it."""
    masks = torch.eye(width, dtype=torch.bool).repeat(batch, 1, 1)
    for mask in masks:
        for row in range(1, width):
            parent = int(torch.randint(max(0, row - 4), row, (), generator=generator))
            mask[row] |= mask[parent]
    return masks


def random_step(
    shape: Shape,
    seed: int,
    device: str,
    dtype: torch.dtype,
    *,
    cache_dtype: torch.dtype | None = None,
    soft_cap: float = 0.0,
    window: int = NO_WINDOW,
) -> VerifyStep:
    """A step of `shape` with normal keys, values and queries, its tokens scattered over the cache.

    Args:
        shape: of the step.
        seed: of all that is random.
        device: where the step is.
        dtype: of the queries.
        cache_dtype: of keys and values; default: that of the queries.
        soft_cap: see `ScoreRules`.
        window: see `ScoreRules`.
    """
    generator = torch.Generator().manual_seed(seed)
    length = shape.context + shape.width
    tokens = shape.batch * length
    on_device = torch.Generator(device).manual_seed(seed)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=on_device, device=device, dtype=dtype)

    masks = random_masks(shape.batch, shape.width, generator).to(device)
    keys, values = (normal(tokens, shape.kv_heads, shape.head_dim).to(cache_dtype or dtype) for _ in range(2))
    pages = torch.randperm(tokens, generator=on_device, device=device).int()
    indptr = torch.arange(0, tokens + 1, length, dtype=torch.int32, device=device)
    return VerifyStep(
        shape,
        normal(shape.batch * shape.width, shape.heads, shape.head_dim),
        (keys, values),
        PagedBatch(indptr, pages, torch.ones(shape.batch, dtype=torch.int32, device=device), 1),
        masks,
        pack_mask(masks).flatten(0, 1).contiguous(),
        ScoreRules(shape.head_dim**-0.5, soft_cap, window),
    )
