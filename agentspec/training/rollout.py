"""The target's own greedy outputs for many prompts at once, with what an EAGLE-3 head sees and should predict.

Training data must follow the target's distribution, so the target writes it. Many sequences are decoded together:
every linear layer then multiplies a whole batch, which a CPU does several times faster per token than one sequence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from agentspec.drafters.eagle3.session import WINDOW
from agentspec.engines.local.model import SequenceInput
from agentspec.repetition import tokens_before_loop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from agentspec.engines.local.kv_cache import KVCache
    from agentspec.engines.local.model import TargetModel

PREFILL_SEQUENCES = 4
"""Prompts that go through prefill together; bounds the memory of the logits of all their tokens."""

LOOKED_AFTER = 16
"""Tokens generated between two looks at whether a sequence has begun to repeat itself."""


@dataclass(frozen=True, slots=True)
class Features:
    """One sequence as the target saw it.

    Attributes:
        tokens: `int32[T]`, prompt and output.
        prompt_length: leading tokens of `tokens` that are prompt.
        hidden: `bfloat16[T, C * hidden]`, the captured residual streams side by side.
        top_ids: `int32[T, K]`, most likely next tokens after each token, best first.
        top_logprobs: `float32[T, K]`, their log-probabilities under the target.
    """

    tokens: Tensor
    prompt_length: int
    hidden: Tensor
    top_ids: Tensor
    top_logprobs: Tensor

    def worth_learning(self) -> Features:
        """The output up to where it begins to repeat itself, after as much of the prompt as a head looks back on.

        A loop is a copy, which any source drafts; a head that learns loops learns little else.
        """
        first = max(0, self.prompt_length - WINDOW)
        part = slice(first, self.prompt_length + tokens_before_loop(self.tokens[self.prompt_length :].tolist()))
        return Features(
            self.tokens[part],
            self.prompt_length - first,
            self.hidden[part],
            self.top_ids[part],
            self.top_logprobs[part],
        )


@dataclass(slots=True)
class _Sequence:
    """One prompt and its output so far; the parts are per forward pass."""

    cache: KVCache
    tokens: list[int]
    prompt_length: int
    hidden: list[Tensor] = field(default_factory=list)
    top_ids: list[Tensor] = field(default_factory=list)
    top_logprobs: list[Tensor] = field(default_factory=list)

    @property
    def loops(self) -> bool:
        """Whether the output has begun to repeat itself."""
        output = self.tokens[self.prompt_length :]
        return tokens_before_loop(output) < len(output)

    def features(self) -> Features:
        return Features(
            torch.tensor(self.tokens[: self.cache.length], dtype=torch.int32),
            self.prompt_length,
            torch.cat(self.hidden),
            torch.cat(self.top_ids),
            torch.cat(self.top_logprobs),
        )


class Rollout:
    """Greedy generation in large batches.

    Args:
        model: the target.
        capture: layers whose incoming residual stream is recorded, ascending.
        top: likely next tokens recorded per position.
    """

    def __init__(self, model: TargetModel, capture: tuple[int, ...], top: int = 16) -> None:
        self._model = model
        self._capture = capture
        self._top = top

    def generate(self, prompts: Sequence[Sequence[int]], max_new: int) -> list[Features]:
        """Continue every prompt greedily and record what a head needs.

        Args:
            prompts: token ids, each at least one.
            max_new: most tokens generated per prompt; 0 records the prompts alone, as if they were output.

        Returns:
            One entry per prompt, in order. An end token closes a sequence and stays in it; a sequence that repeats
            itself is not continued for long.
        """
        sequences = [
            _Sequence(self._model.new_cache(len(prompt) + max_new), list(prompt), len(prompt) if max_new else 1)
            for prompt in prompts
        ]
        for start in range(0, len(sequences), PREFILL_SEQUENCES):
            self._advance(sequences[start : start + PREFILL_SEQUENCES])
        running = sequences
        for generated in range(max_new):
            running = [one for one in running if one.tokens[-1] not in self._model.eos_token_ids]
            if generated % LOOKED_AFTER == 0:
                running = [one for one in running if not one.loops]
            if not running:
                break
            for one in running:
                one.tokens.append(int(one.top_ids[-1][-1, 0]))
            self._advance(running)
        return [one.features() for one in sequences]

    def _advance(self, sequences: list[_Sequence]) -> None:
        """Run the tokens that the target has not read yet and record what it says."""
        inputs = [
            SequenceInput(
                one.cache,
                torch.tensor(one.tokens[one.cache.length :]),
                torch.arange(one.cache.length, len(one.tokens)),
            )
            for one in sequences
        ]
        logits, hidden = self._model.forward_with_hidden(inputs, self._capture)
        top = logits.topk(self._top)
        logprobs = top.values - logits.logsumexp(-1, keepdim=True)
        counts = [len(one.tokens) for one in inputs]
        parts = [torch.split(tensor, counts) for tensor in (hidden.bfloat16(), top.indices.int(), logprobs)]
        for one, streams, ids, probs in zip(sequences, *parts, strict=True):
            one.hidden.append(streams)
            one.top_ids.append(ids)
            one.top_logprobs.append(probs)
            one.cache.length = len(one.tokens)
