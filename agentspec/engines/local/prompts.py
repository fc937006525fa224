"""Which part of which prompts goes through the target next."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import torch

from agentspec.engines.local.model import SequenceInput
from agentspec.engines.local.prefix_cache import common_prefix
from agentspec.engines.local.request import Phase

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agentspec.engines.local.cache_store import CacheStore
    from agentspec.engines.local.request import Generation
    from agentspec.engines.local.speculation import StepClock

PASS_SECONDS = 0.08
"""Length of a pass over prompts: a cancelled request occupies the target for no longer."""

PASS_SECONDS_SHARED = 0.04
"""The same when others are decoding, whose next token waits for it."""

CHUNK_MULTIPLE = 64
"""Chunks end at multiples of this, and are at least as long."""

MOST_TOKENS = 2048
"""Most prompt tokens in one pass, however fast the target is."""

WORTH_WAITING = 64
"""Tokens that a prompt must have in common with one that is being computed to wait for it."""


class Prompts:
    """Cuts prompts into chunks and gives each its turn.

    Args:
        caches: where finished texts are kept that a prompt may begin like.
        clock: what passes cost; decides how long chunks are.
    """

    def __init__(self, caches: CacheStore, clock: StepClock) -> None:
        self._caches = caches
        self._alone = clock.tokens_within(PASS_SECONDS, CHUNK_MULTIPLE, MOST_TOKENS)
        self._shared = clock.tokens_within(PASS_SECONDS_SHARED, CHUNK_MULTIPLE, MOST_TOKENS)
        self._turns = count(1)

    def chunks(self, running: Sequence[Generation], *, decoding: bool) -> Iterator[tuple[Generation, SequenceInput]]:
        """Chunks for the next pass, of as many prompts as it has room for.

        Args:
            running: all running generations in the order of their admission.
            decoding: whether others decode in the same pass.
        """
        room = self._shared if decoding else self._alone
        for generation in sorted(running, key=lambda one: one.turn):
            if generation.phase is not Phase.PREFILL or (not generation.begun and self._waits(generation, running)):
                continue
            if not generation.begun:
                generation.begin_prefill(self._caches, running)
            cache = generation.choices[0].cache
            assert cache is not None
            start, whole = cache.length, len(generation.prompt)
            end = min((start + room) // CHUNK_MULTIPLE * CHUNK_MULTIPLE, whole)
            if end <= start:
                return
            room -= end - start
            generation.turn = next(self._turns)
            last = torch.tensor([end - start - 1] if end == whole else [], dtype=torch.int64)
            tokens = torch.from_numpy(generation.prompt[start:end]).long()
            yield generation, SequenceInput(cache, tokens, torch.arange(start, end), logit_rows=last)

    def _waits(self, generation: Generation, running: Sequence[Generation]) -> bool:
        """Whether a prompt admitted earlier is computing a beginning that this one shares.

        Only earlier ones are waited for, so that nobody waits in a circle.
        """
        cache = generation.choices[0].cache
        assert cache is not None
        for other in running:
            if other is generation:
                return False
            known = other.choices[0].cache
            if other.phase is Phase.PREFILL and known is not None:
                shared = common_prefix(other.prompt, generation.prompt)
                if known.length < shared and shared >= cache.length + WORTH_WAITING:
                    return True
        return False
