"""A head to begin with: the target's own last layer, which short training only has to bend, not to make."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from transformers import AutoConfig

from agentspec.drafters.eagle3.config import HeadConfig
from agentspec.drafters.eagle3.head import Eagle3Head
from agentspec.engines.local.checkpoint import Checkpoint
from agentspec.engines.local.weights import LayerWeights, OuterWeights

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from torch import Tensor

    from agentspec.training.rollout import Features

EMBEDDING_SCALE = 0.02
"""Standard deviation of the weights that read the next token's embedding, for which the target has no counterpart."""


def frequent_tokens(sequences: Iterable[Features], vocab_size: int, count: int) -> Tensor:
    """`int64[count]`, ascending: the tokens that the target most often takes for most likely, then low ids.

    Args:
        sequences: recorded.
        vocab_size: the target's.
        count: tokens wanted.
    """
    seen = torch.zeros(vocab_size)
    for one in sequences:
        # The runners-up break ties among tokens that were never first.
        mass = one.top_logprobs.float().exp()
        mass[:, 0] += 1
        seen.index_add_(0, one.top_ids.long().flatten(), mass.flatten())
    # Byte-pair encodings number frequent tokens first.
    order = torch.argsort(seen, descending=True, stable=True)
    return order[:count].sort().values


def initial_head(folder: Path, capture: tuple[int, ...], draft_to_target: Tensor, seed: int) -> Eagle3Head:
    """A head whose layer and vocabulary rows are the target's, and whose fused stream is the highest captured one.

    Args:
        folder: the target in Hugging Face format.
        capture: layers whose incoming stream the head will read.
        draft_to_target: `int64[D]`.
        seed: of what is random.
    """
    target = AutoConfig.from_pretrained(folder)
    fetch = Checkpoint(folder).fetch
    last = LayerWeights.read(fetch, target.num_hidden_layers - 1)
    outer = OuterWeights.read(fetch)
    config = HeadConfig.sized_like(target, draft_vocab_size=len(draft_to_target), capture=capture)
    head = Eagle3Head(config)
    width = config.hidden
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        head.fc.weight.zero_()
        head.fc.weight[:, -width:] = torch.eye(width)
        head.qkv.weight[:, :width] = torch.randn(len(last.qkv), width, generator=generator) * EMBEDDING_SCALE
        head.qkv.weight[:, width:] = last.qkv
        for module, weight in (
            (head.stream_norm, last.attention_norm),
            (head.output, last.output),
            (head.feed_norm, last.feed_norm),
            (head.gate_up, last.gate_up),
            (head.down, last.down),
            (head.norm, outer.norm),
            (head.lm_head, outer.head[draft_to_target]),
        ):
            module.weight.copy_(weight)
        head.draft_to_target.copy_(draft_to_target)
    return head
