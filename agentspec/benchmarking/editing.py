"""The end-to-end measurement: the same request with speculation off and on, and what the difference is."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from agentspec.benchmarking.measure import Measurement, measure
from agentspec.engines.base import GenerationRequest, SamplingParams
from agentspec.index.store import find_store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from agentspec.engines.base import Engine
    from agentspec.index.snapshot import Snapshot
    from agentspec.index.store import IndexStore


@dataclass(frozen=True, slots=True)
class EditTask:
    """A request as an editor or an agent would send it.

    Attributes:
        name: unique in its run.
        kind: what sort of edit it is.
        prompt: raw text that the target continues.
        stop: strings that end the answer.
        max_tokens: upper bound of the answer.
        edited_path: file of the repository that the edit is about.
    """

    name: str
    kind: str
    prompt: str
    stop: tuple[str, ...]
    max_tokens: int
    edited_path: str

    def request(self, repository: str, *, speculation: bool) -> GenerationRequest:
        """Greedy, so that both modes must give the same text.

        Args:
            repository: id under which the engine knows the repository.
            speculation: the mode.
        """
        return GenerationRequest(
            id=f"{self.name}:{'drafted' if speculation else 'plain'}",
            prompt=self.prompt,
            sampling=SamplingParams(temperature=0.0, max_tokens=self.max_tokens, stop=self.stop),
            repository=repository,
            edited_path=self.edited_path,
            speculation=speculation,
        )


@dataclass(frozen=True, slots=True)
class Pair:
    """One task in both modes.

    Attributes:
        task: what was asked.
        plain: with speculation off.
        drafted: with speculation on.
    """

    task: EditTask
    plain: Measurement
    drafted: Measurement

    @property
    def identical(self) -> bool:
        """Whether both modes gave the same tokens without an error."""
        return not (self.plain.error or self.drafted.error) and self.plain.token_ids == self.drafted.token_ids

    @property
    def ratio(self) -> float:
        """How many times shorter the drafted request took, prefill included."""
        return self.plain.seconds / self.drafted.seconds if self.drafted.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and 95th percentile, in seconds."""

    median: float
    p95: float

    @classmethod
    def of(cls, seconds: Sequence[float] | NDArray[np.float64]) -> Spread:
        """Of a sample; zeros for an empty one."""
        if not len(seconds):
            return cls(0.0, 0.0)
        median, p95 = np.percentile(np.asarray(seconds), [50, 95])
        return cls(float(median), float(p95))


@dataclass(frozen=True, slots=True)
class ModeSummary:
    """Pooled figures of one mode.

    Attributes:
        requests: how many.
        errors: how many of them failed.
        tokens: generated in all.
        verify_steps: passes of the target after prefill.
        tokens_per_step: pooled.
        tokens_per_second: tokens over the requests' whole time, prefill included.
        decode_tokens_per_second: tokens after the first over the time after it.
        first_token: time to the first token.
        token_gap: between tokens, bursts as they are (tokens of one step are 0 apart).
        step_gap: between bursts.
    """

    requests: int
    errors: int
    tokens: int
    verify_steps: int
    tokens_per_step: float
    tokens_per_second: float
    decode_tokens_per_second: float
    first_token: Spread
    token_gap: Spread
    step_gap: Spread


class StoredRepositories:
    """Gives an engine the indexes that `agentspec index` keeps; a repository's id is its path.

    Args:
        index_directory: where stores live.
    """

    def __init__(self, index_directory: Path) -> None:
        self._index_directory = index_directory
        self._stores: dict[tuple[str, str], IndexStore] = {}

    def snapshot_for(self, repository_id: str, fingerprint: str) -> Snapshot:
        """See `agentspec.engines.local.preparation.RepositorySource`. A store stays open, as in a server."""
        key = (repository_id, fingerprint)
        if key not in self._stores:
            self._stores[key] = find_store(self._index_directory, Path(repository_id), fingerprint)
        return self._stores[key].current(fingerprint)


async def run_pair(
    engine: Engine,
    task: EditTask,
    repository: str,
    *,
    drafted_first: bool,
    show: Callable[[str], None] = lambda _: None,
) -> Pair:
    """Run a task in both modes, one after the other.

    Args:
        engine: ready, and without retained prefixes, or the second run has an unfair start.
        task: what to ask.
        repository: id under which the engine knows the repository.
        drafted_first: which mode begins; alternate, so that drift of the machine favours neither.
        show: called with each piece of text of the drafted run.
    """
    measured: dict[bool, Measurement] = {}
    for speculation in (drafted_first, not drafted_first):
        request = task.request(repository, speculation=speculation)
        measured[speculation] = await measure(engine, request, show if speculation else lambda _: None)
    return Pair(task, measured[False], measured[True])


def summarise_mode(measurements: Sequence[Measurement]) -> ModeSummary:
    """Pool the measurements of one mode."""
    tokens = sum(len(measured.token_ids) for measured in measurements)
    steps = sum(measured.receipt.verify_steps for measured in measurements)
    seconds = sum(measured.seconds for measured in measurements)
    decode_seconds = sum(measured.decode_seconds for measured in measurements)
    later_tokens = sum(len(measured.token_gaps()) for measured in measurements)
    gaps = np.empty(0)
    return ModeSummary(
        requests=len(measurements),
        errors=sum(bool(measured.error) for measured in measurements),
        tokens=tokens,
        verify_steps=steps,
        tokens_per_step=tokens / steps if steps else 0.0,
        tokens_per_second=tokens / seconds if seconds else 0.0,
        decode_tokens_per_second=later_tokens / decode_seconds if decode_seconds else 0.0,
        first_token=Spread.of([measured.first_token_seconds for measured in measurements]),
        token_gap=Spread.of(np.concatenate([gaps, *(measured.token_gaps() for measured in measurements)])),
        step_gap=Spread.of(np.concatenate([gaps, *(measured.step_gaps() for measured in measurements)])),
    )


def overall_ratio(pairs: Sequence[Pair]) -> float:
    """Whole time of the plain requests over whole time of the drafted ones."""
    drafted = sum(pair.drafted.seconds for pair in pairs)
    return sum(pair.plain.seconds for pair in pairs) / drafted if drafted else 0.0


def peak_memory_bytes() -> int:
    """Largest resident size of this process so far."""
    import resource  # noqa: PLC0415 - not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
