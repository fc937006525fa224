"""Memory is used again only when nobody can see it any more."""

from __future__ import annotations

import torch

from agentspec.kernels.reused_memory import MOST_KEPT, ReusedMemory


def test_memory_is_used_again_when_the_last_tensor_is_gone() -> None:
    memory = ReusedMemory()
    first = memory.take(4, 100)
    place = first.data_ptr()
    del first

    assert memory.take(2, 50).data_ptr() == place


def test_what_is_still_held_keeps_its_content() -> None:
    memory = ReusedMemory()
    first = memory.take(4, 100)
    first.fill_(1.0)
    memory.take(4, 100).fill_(2.0)

    assert torch.equal(first, torch.ones(4, 100))


def test_a_part_that_is_still_held_keeps_its_content() -> None:
    memory = ReusedMemory()
    part = torch.split(memory.take(4, 100).fill_(1.0), [1, 3])[1][2]
    memory.take(4, 100).fill_(2.0)

    assert torch.equal(part, torch.ones(100))


def test_a_larger_tensor_takes_memory_of_its_own() -> None:
    memory = ReusedMemory()
    memory.take(2, 3)

    assert memory.take(5, 7).shape == (5, 7)


def test_much_memory_is_given_back() -> None:
    memory = ReusedMemory()
    small = memory.take(2, 3)
    place = small.data_ptr()
    del small
    memory.take(1, MOST_KEPT + 1)

    assert memory.take(2, 3).data_ptr() == place
