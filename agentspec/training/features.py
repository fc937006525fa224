"""What the target saw, on disk: shards of sequences, written whole or not at all, mapped when read."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from agentspec.errors import InvalidRequestError
from agentspec.training.rollout import Features

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from agentspec.training.rollout import Rollout


def write_shard(file: Path, sequences: Sequence[Features]) -> None:
    """Store sequences under the name `file`; a kill at any instant leaves the old file or the new one."""
    lengths = torch.tensor([len(one.tokens) for one in sequences])
    tensors = {
        "lengths": lengths,
        "prompt_lengths": torch.tensor([one.prompt_length for one in sequences]),
        "tokens": torch.cat([one.tokens for one in sequences]),
        "hidden": torch.cat([one.hidden for one in sequences]),
        "top_ids": torch.cat([one.top_ids for one in sequences]),
        "top_logprobs": torch.cat([one.top_logprobs for one in sequences]),
    }
    partial = file.with_suffix(".partial")
    save_file(tensors, partial)
    partial.replace(file)


class FeatureStore:
    """Sequences of some shards as one list; only what is asked for is read.

    Args:
        files: shards, in the order their sequences are numbered.

    Raises:
        InvalidRequestError: a shard is missing or damaged; delete it and record it again.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._places: list[tuple[int, int, int, int]] = []
        self._shards: list[Any] = []
        for number, file in enumerate(files):
            try:
                shard: Any = safe_open(file, framework="pt")
                lengths = shard.get_tensor("lengths").tolist()
                prompts = shard.get_tensor("prompt_lengths").tolist()
            except (OSError, SafetensorError) as error:
                raise InvalidRequestError(f"training features {file} cannot be read: {error}; delete it") from error
            start = 0
            for length, prompt in zip(lengths, prompts, strict=True):
                self._places.append((number, start, start + length, prompt))
                start += length
            self._shards.append(shard)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Features:
        number, start, stop, prompt = self._places[index]
        read = {
            name: self._shards[number].get_slice(name)[start:stop]
            for name in ("tokens", "hidden", "top_ids", "top_logprobs")
        }
        return Features(read["tokens"], prompt, read["hidden"], read["top_ids"], read["top_logprobs"])

    @property
    def lengths(self) -> list[int]:
        """Tokens of every sequence."""
        return [stop - start for _, start, stop, _ in self._places]

    @property
    def tokens(self) -> int:
        """Tokens in all sequences."""
        return sum(self.lengths)


def record(
    rollout: Rollout,
    prompts: Sequence[Sequence[int]],
    folder: Path,
    *,
    shard_size: int,
    max_new: int,
    report: Callable[[int, int], None],
    deadline: float = math.inf,
) -> list[Path]:
    """Let the target answer all prompts and store what is worth learning; shards that exist are kept.

    Args:
        rollout: the target.
        prompts: token ids.
        folder: where the shards go.
        shard_size: prompts per shard, decoded together.
        max_new: most tokens generated per prompt.
        report: told shards done and in all.
        deadline: no further shard is begun after this reading of `time.monotonic`, except a first one.

    Returns:
        The shards there are, in an order in which every leading part is a fair sample of all prompts.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Prompts of similar length share a shard, so that little is padded.
    ordered = sorted(prompts, key=len)
    groups = [ordered[start : start + shard_size] for start in range(0, len(ordered), shard_size)]
    shuffled = torch.randperm(len(groups), generator=torch.Generator().manual_seed(0)).tolist()
    files = [folder / f"{number:05d}.safetensors" for number in shuffled]
    for done, (number, file) in enumerate(zip(shuffled, files, strict=True)):
        if not file.exists():
            if done and time.monotonic() > deadline:
                return files[:done]
            sequences = rollout.generate(groups[number], max_new)
            write_shard(file, [one.worth_learning() for one in sequences] if max_new else sequences)
        report(done + 1, len(files))
    return files
