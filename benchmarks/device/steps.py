"""What a verify step costs beside attention: packing the mask, accepting, compacting the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from agentspec.kernels.measuring.steps import random_masks
from agentspec.kernels.triton.accept import DeviceSampling, accept
from agentspec.kernels.triton.bits import pack_mask_into
from agentspec.kernels.triton.compaction import PathCompaction

if TYPE_CHECKING:
    from agentspec.kernels.measuring.timing import Timer


def time_steps(
    timer: Timer, device: str, *, batch: int, width: int, vocabulary: int, layers: int, row_elements: int
) -> dict[str, float]:
    """Microseconds of each part.

    Args:
        timer: measures them.
        device: where they run.
        batch: requests.
        width: rows of each.
        vocabulary: width of the logits.
        layers: caches are two per layer.
        row_elements: 16-bit elements of a token's keys in one layer.
    """
    generator = torch.Generator().manual_seed(0)
    masks = random_masks(batch, width, generator).to(device)
    bits = torch.zeros(batch * width, -(-width // 64), dtype=torch.int64, device=device)
    parents = torch.arange(-1, width - 1, dtype=torch.int32, device=device).repeat(batch, 1)
    tokens = torch.zeros(batch, width, dtype=torch.int64, device=device)
    logits = torch.randn(batch * width, vocabulary, generator=generator).to(device)
    logits[:, 0] += 100.0  # every row draws the drafted token, so that the whole path is walked
    greedy, sampled = (
        DeviceSampling(torch.full((batch,), t, device=device), torch.arange(batch, device=device), tokens)
        for t in (0.0, 1.0)
    )
    slots = torch.arange(batch * width, device=device).view(batch, width)
    caches = [torch.zeros(batch * width, row_elements, dtype=torch.bfloat16, device=device) for _ in range(2 * layers)]
    compact = PathCompaction(caches)
    half = (width + 1) // 2
    path = torch.full((batch, width), -1, dtype=torch.int32, device=device)
    path[:, :half] = torch.arange(0, 2 * half, 2, device=device)[:half]
    counts = torch.full((batch,), half, dtype=torch.int32, device=device)
    return {
        "pack_mask": timer.microseconds(lambda: pack_mask_into(masks, bits)),
        "accept_greedy": timer.microseconds(lambda: accept(logits, tokens, parents, greedy)),
        "accept_sampled": timer.microseconds(lambda: accept(logits, tokens, parents, sampled)),
        "compact": timer.microseconds(lambda: compact(slots, path, counts)),
    }
