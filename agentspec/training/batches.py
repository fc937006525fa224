"""Which sequences one optimiser step takes: alike in length, so that little is padded, and about as many tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

SORTED_TOGETHER = 128
"""Sequences among which neighbours in length are looked for; the fewer, the more random the batches."""


def batches(lengths: Sequence[int], order: Sequence[int], tokens: int) -> list[list[int]]:
    """Group sequences, taken by length from runs of `SORTED_TOGETHER` of them.

    Args:
        lengths: tokens of every sequence.
        order: sequences to group.
        tokens: most of a batch, its padding included; a longer sequence is a batch by itself.
    """
    groups: list[list[int]] = []
    for start in range(0, len(order), SORTED_TOGETHER):
        group: list[int] = []
        for index in sorted(order[start : start + SORTED_TOGETHER], key=lambda index: lengths[index]):
            if group and lengths[index] * (len(group) + 1) > tokens:
                groups.append(group)
                group = []
            group.append(index)
        groups.append(group)
    return groups


def epoch_batches(lengths: Sequence[int], tokens: int, seed: int) -> list[list[int]]:
    """Batches that hold every sequence once, in an order that `seed` fixes."""
    generator = torch.Generator().manual_seed(seed)
    grouped = batches(lengths, torch.randperm(len(lengths), generator=generator).tolist(), tokens)
    return [grouped[number] for number in torch.randperm(len(grouped), generator=generator).tolist()]
