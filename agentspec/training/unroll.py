"""EAGLE-3's training-time test: the head is trained on its own streams, as it will draft.

At step 0 the head reads the target's fused streams at every position. At step k it reads the stream that it made at
step k - 1, moved one token on: drafting k tokens ahead from every position at once. A query of step k then sees the
target-made keys up to its base position and the keys of its own chain, one per step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from torch.nn.utils.rnn import pad_sequence

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from agentspec.drafters.eagle3.head import Eagle3Head
    from agentspec.training.rollout import Features

PROMPT_WEIGHT = 0.3
"""Weight of a position inside the prompt in the loss; one in the target's own output weighs 1."""


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """Sequences padded at the end to one length.

    Attributes:
        tokens: `int64[B, T]`.
        hidden: `[B, T, 3 * hidden]`, captured streams.
        top_ids: `int64[B, T, K]`, likely tokens after each token.
        top_logprobs: `float32[B, T, K]`.
        weights: `float32[B, T]`, weight of predicting the token after each token; 0 in the padding.
        own: `bool[B, T]`, the token after this one is the target's own output.
    """

    tokens: Tensor
    hidden: Tensor
    top_ids: Tensor
    top_logprobs: Tensor
    weights: Tensor
    own: Tensor

    @classmethod
    def of(cls, sequences: Sequence[Features]) -> TrainingBatch:
        """Pad and stack."""
        own = [torch.arange(len(one.tokens)) >= one.prompt_length - 1 for one in sequences]
        weights = [torch.where(mask, 1.0, PROMPT_WEIGHT) for mask in own]
        return cls(
            tokens=pad_sequence([one.tokens.long() for one in sequences], batch_first=True),
            hidden=pad_sequence([one.hidden for one in sequences], batch_first=True),
            top_ids=pad_sequence([one.top_ids.long() for one in sequences], batch_first=True),
            top_logprobs=pad_sequence([one.top_logprobs.float() for one in sequences], batch_first=True),
            weights=pad_sequence(weights, batch_first=True),
            own=pad_sequence(own, batch_first=True),
        )


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step of the training-time test measured.

    Attributes:
        loss: scalar, weighted mean of the cross-entropy against the target's distribution.
        hits: `int64`, positions of the target's own output at which the head's best token is the target's.
        count: `int64`, such positions in all.
    """

    loss: Tensor
    hits: Tensor
    count: Tensor


class DraftVocabulary:
    """Maps the target's tokens to the head's.

    Args:
        draft_to_target: `int64[D]`.
        vocab_size: the target's.
    """

    def __init__(self, draft_to_target: Tensor, vocab_size: int) -> None:
        self._draft_of = torch.full((vocab_size,), -1)
        self._draft_of[draft_to_target] = torch.arange(len(draft_to_target))

    def restrict(self, ids: Tensor, logprobs: Tensor) -> tuple[Tensor, Tensor]:
        """Draft ids (0 where there is none) and the target's probabilities renormalised over the draft vocabulary.

        Positions whose best token the head cannot draft get no probability at all: they teach nothing.
        """
        drafts = self._draft_of[ids]
        known = drafts >= 0
        mass = logprobs.exp() * known
        probs = mass / mass.sum(-1, keepdim=True).clamp(min=1e-9) * known[..., :1]
        return drafts.clamp(min=0), probs


def training_time_test(
    head: Eagle3Head, embedding: Tensor, vocabulary: DraftVocabulary, batch: TrainingBatch, steps: int
) -> list[StepResult]:
    """Draft `steps` tokens ahead from every position of a batch.

    Args:
        head: being trained.
        embedding: `[V, hidden]`, the target's.
        vocabulary: of the head.
        batch: sequences.
        steps: at least 1.
    """
    ahead = drafted_logits(head, embedding, batch.hidden, batch.tokens, steps)
    return [_score(logits, vocabulary, batch, step) for step, logits in enumerate(ahead)]


def drafted_logits(head: Eagle3Head, embedding: Tensor, hidden: Tensor, tokens: Tensor, steps: int) -> Iterator[Tensor]:
    """Logits 1, 2, ... `steps` tokens further than the target's streams reach, from every position but the last.

    Args:
        head: any.
        embedding: `[V, hidden]`, the target's.
        hidden: `[B, T, 3 * hidden]`, captured streams.
        tokens: `int64[B, T]`; the drafts are assumed to be these.
        steps: at least 1.

    Yields:
        `[B, T - 1, draft_vocab_size]`; entry (b, i) of step k predicts token i + 2 + k, and means nothing where the
        sequence ends before token i + 1 + k.
    """
    last = tokens.shape[1] - 1
    stream = head.fuse(hidden[:, :last].to(head.fc.weight.dtype))
    chain: list[tuple[Tensor, Tensor]] = []
    for step in range(steps):
        following = F.pad(tokens[:, 1 + step :], (0, step))[:, :last]
        positions = (torch.arange(last) + step).expand_as(following)
        queries, keys, values = head.project(embedding[following].to(stream.dtype), stream, positions)
        chain.append((keys, values))
        stream = head.merge(_attend(queries, chain), stream)
        yield head.logits(stream)


def _attend(queries: Tensor, chain: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Attention of `[B, T, heads, D]` on step 0's keys causally and on its own chain; `[B, T, heads * D]`."""
    keys, values = (part.transpose(1, 2) for part in chain[0])
    rows = queries.transpose(1, 2)
    if len(chain) == 1:
        output = F.scaled_dot_product_attention(rows, keys, values, is_causal=True, enable_gqa=True)
        return output.transpose(1, 2).flatten(2)
    length, width = rows.shape[2:]
    rows = rows.reshape(len(rows), keys.shape[1], -1, length, width) / math.sqrt(width)
    context = torch.einsum("bkgtd,bksd->bkgts", rows, keys)
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    context = context.masked_fill(future, -torch.inf)
    own = [(rows * k.transpose(1, 2)[:, :, None]).sum(-1, keepdim=True) for k, _ in chain[1:]]
    share = torch.cat([context, *own], -1).float().softmax(-1).to(values.dtype)
    output = torch.einsum("bkgts,bksd->bkgtd", share[..., :length], values)
    for step, (_, v) in enumerate(chain[1:]):
        output = output + share[..., length + step, None] * v.transpose(1, 2)[:, :, None]
    return output.flatten(1, 2).transpose(1, 2).flatten(2)


def _score(logits: Tensor, vocabulary: DraftVocabulary, batch: TrainingBatch, step: int) -> StepResult:
    """Compare predictions from base positions 0, 1, ... with the target `step + 1` tokens further on."""
    ahead = slice(1 + step, None)
    weights = batch.weights[:, ahead]
    reached = weights.shape[1]
    ids, probs = vocabulary.restrict(batch.top_ids[:, ahead], batch.top_logprobs[:, ahead])
    logprobs = logits[:, :reached].float().log_softmax(-1)
    cross_entropy = -(logprobs.gather(-1, ids) * probs).sum(-1)
    loss = (cross_entropy * weights).sum() / weights.sum().clamp(min=1e-9)
    counted = batch.own[:, ahead] & (weights > 0)
    hits = (logprobs.argmax(-1) == ids[..., 0]) & (probs[..., 0] > 0) & counted
    return StepResult(loss, hits.sum(), counted.sum())
