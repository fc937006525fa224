"""Sampling penalties of every node of a draft tree, counted along the node's own path.

SGLang penalises all nodes of a speculative step alike, by what was committed before it. Here each node sees exactly
what plain decoding would have seen in its place. The order of operations is SGLang's: frequency, presence and the
minimum length are added, then repetition scales.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


@dataclass(frozen=True, slots=True)
class PenaltyRule:
    """The penalties that one request asks for.

    Attributes:
        frequency: subtracted per occurrence in the output.
        presence: subtracted once for every token in the output.
        repetition: divides positive logits of tokens in the output, multiplies negative ones.
        min_new_tokens: until that many tokens are generated, `stop_tokens` are impossible.
        stop_tokens: tokens that would end the text.
    """

    frequency: float
    presence: float
    repetition: float
    min_new_tokens: int
    stop_tokens: tuple[int, ...]

    @classmethod
    def of(cls, request: Any) -> PenaltyRule | None:
        """The rule of an SGLang request; None when it asks for no penalty."""
        params = request.sampling_params
        stop: set[int] = set()
        if params.min_new_tokens > 0:
            tokenizer = request.tokenizer
            extra = getattr(tokenizer, "additional_stop_token_ids", None)
            stop.update(*(ids for ids in (params.stop_token_ids, request.eos_token_ids, extra) if ids))
            stop.update({tokenizer.eos_token_id} - {None})
        rule = cls(
            params.frequency_penalty,
            params.presence_penalty,
            params.repetition_penalty,
            params.min_new_tokens,
            tuple(sorted(stop)),
        )
        neutral = (rule.frequency, rule.presence, rule.repetition, rule.min_new_tokens) == (0, 0, 1, 0)
        return None if neutral else rule


class PathPenalties:
    """Penalties of one request: what was generated so far, on the device.

    Args:
        rule: what to apply.
        vocabulary_size: V.
        device: of the logits.
    """

    def __init__(self, rule: PenaltyRule, vocabulary_size: int, device: torch.device | str) -> None:
        self._rule = rule
        self._frequency = torch.zeros(vocabulary_size, device=device)
        self._presence = torch.zeros(vocabulary_size, device=device)
        self._repetition = torch.ones(vocabulary_size, device=device)
        self._seen = 0

    def catch_up(self, output: Sequence[int]) -> None:
        """Count the tokens of `output`, everything generated so far, that are new since the last call."""
        new = torch.tensor(output[self._seen :], dtype=torch.long, device=self._frequency.device)
        self._seen = len(output)
        self._frequency.index_add_(0, new, torch.full_like(new, self._rule.frequency, dtype=torch.float32))
        self._presence[new] = self._rule.presence
        self._repetition[new] = self._rule.repetition

    def apply(self, logits: Tensor, tokens: Tensor, mask: Tensor, depths: Tensor) -> None:
        """Penalise the logits of one request's nodes in place.

        Args:
            logits: `[N, V]`, what the target says after each node; row 0 is the root's.
            tokens: `int64[N]`, the node's tokens; the root's is part of the output already.
            mask: `bool[N, N]`, row i marks node i's path, itself included.
            depths: `int64[N]`, nodes on that path, the root not counted.
        """
        rule = self._rule
        node, on_path = mask.nonzero(as_tuple=True)
        node, on_path = node[on_path > 0], on_path[on_path > 0]
        places = (node, tokens[on_path])
        additive = torch.zeros_like(logits, dtype=torch.float32)
        if rule.frequency != 0:
            share = torch.full_like(node, rule.frequency, dtype=torch.float32)
            additive -= self._frequency.repeat(len(logits), 1).index_put_(places, share, accumulate=True)
        if rule.presence != 0:
            present = torch.tensor(rule.presence, device=logits.device)
            additive -= self._presence.repeat(len(logits), 1).index_put_(places, present)
        if rule.min_new_tokens > 0 and rule.stop_tokens:
            early = self._seen + depths < rule.min_new_tokens
            stop = torch.tensor(rule.stop_tokens, device=logits.device)
            additive[:, stop] += torch.where(early, float("-inf"), 0.0).unsqueeze(1)
        logits += additive
        if rule.repetition != 1:
            repeated = torch.tensor(rule.repetition, device=logits.device)
            scale = self._repetition.repeat(len(logits), 1).index_put_(places, repeated)
            logits.copy_(torch.where(logits < 0, logits * scale, logits / scale))
