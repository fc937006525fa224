"""The same requests with each kind of draft in one engine, in turns: what every source is worth, alone and together."""

from __future__ import annotations

from collections import defaultdict
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from agentspec.benchmarking.editing import StoredRepositories, summarise_mode
from agentspec.benchmarking.measure import measure
from agentspec.benchmarking.prompt_lookup import PromptLookupDrafter
from agentspec.benchmarking.repetition import cut_loops
from agentspec.drafters.fused_drafter import FusedDrafter
from agentspec.drafters.tree_drafter import TreeDrafter
from agentspec.engines.local.engine import LocalEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agentspec.benchmarking.editing import EditTask
    from agentspec.benchmarking.measure import Measurement
    from agentspec.config import Settings
    from agentspec.drafters.base import Drafter, StreamDrafter
    from agentspec.engines.local.target import Target

PLAIN = "plain"

ByMode: TypeAlias = "dict[str, list[Measurement]]"


def draft_modes(target: Target) -> dict[str, Drafter | StreamDrafter]:
    """A drafter for every mode, `PLAIN` among them; those of the head only where the target has one."""
    tree = TreeDrafter()
    modes: dict[str, Drafter | StreamDrafter] = {
        PLAIN: tree,
        "prompt lookup": PromptLookupDrafter(),
        "model-free": tree,
    }
    if target.head is not None:
        modes |= {
            "EAGLE-3": FusedDrafter(tree, target.head, alone=True),
            "fused": FusedDrafter(tree, target.head),
        }
    return modes


async def run_modes(
    target: Target,
    settings: Settings,
    modes: Mapping[str, Drafter | StreamDrafter],
    tasks: Sequence[EditTask],
    *,
    repository: str,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, ByMode]:
    """Run all tasks in all modes. Modes take turns on every request, so that drift of the machine favours none.

    Answers end where the model begins to repeat itself.

    Args:
        target: loaded once, for all modes.
        settings: without retained prefixes, or later modes find the prompt in the cache.
        modes: drafters by name; the one called `PLAIN` stays silent.
        tasks: what to ask.
        repository: id under which the engine knows the repository.
        advance: told when a task has run in all modes.

    Returns:
        Measurements by kind of edit, then by mode, tasks in order.
    """
    measured: dict[str, ByMode] = {}
    async with AsyncExitStack() as stack:
        engines = {}
        for mode, drafter in modes.items():
            repositories = StoredRepositories(settings.index.directory)
            engine = LocalEngine(settings, repositories=repositories, drafter=drafter, load=lambda _: target)
            await engine.start()
            stack.push_async_callback(engine.stop)
            engines[mode] = engine
        order = list(modes)
        tasks = await cut_loops(engines[order[-1]], tasks, repository)
        for kind in dict.fromkeys(task.kind for task in tasks):
            measured[kind] = {mode: [] for mode in order}
        # The first task runs twice; its first round warms everything up and is not counted.
        for number, task in enumerate([tasks[0], *tasks]):
            turn = number % len(order)
            for mode in order[turn:] + order[:turn]:
                one = await measure(engines[mode], task.request(repository, speculation=mode != PLAIN))
                if number:
                    measured[task.kind][mode].append(one)
            if number:
                advance()
    return measured


@dataclass(frozen=True, slots=True)
class ModeRow:
    """One line of the table.

    Attributes:
        kind: of the edits; "all" for all of them.
        mode: what drafted.
        requests: how many.
        tokens: that they generated.
        tokens_per_step: pooled.
        drafted_per_step: nodes verified.
        tokens_per_second: after the first token.
        of_plain: the same, in that of plain decoding.
        identical: requests whose tokens were those of plain decoding.
    """

    kind: str
    mode: str
    requests: int
    tokens: int
    tokens_per_step: float
    drafted_per_step: float
    tokens_per_second: float
    of_plain: float
    identical: int


def mode_rows(measured: dict[str, ByMode]) -> list[ModeRow]:
    """The table: by kind, then over all kinds."""
    pooled: ByMode = defaultdict(list)
    for by_mode in measured.values():
        for mode, many in by_mode.items():
            pooled[mode] += many
    return [row for kind, by_mode in [*measured.items(), ("all", pooled)] for row in _rows(kind, by_mode)]


def _rows(kind: str, by_mode: ByMode) -> list[ModeRow]:
    plain = by_mode[PLAIN]
    plain_rate = summarise_mode(plain).decode_tokens_per_second
    rows = []
    for mode, many in by_mode.items():
        summary = summarise_mode(many)
        drafted = sum(sum(one.receipt.drafted.values()) for one in many)
        rate = summary.decode_tokens_per_second
        same = sum(one.token_ids == other.token_ids and not one.error for one, other in zip(many, plain, strict=True))
        rows.append(
            ModeRow(
                kind=kind,
                mode=mode,
                requests=len(many),
                tokens=summary.tokens,
                tokens_per_step=summary.tokens_per_step,
                drafted_per_step=drafted / max(1, summary.verify_steps),
                tokens_per_second=rate,
                of_plain=rate / plain_rate if plain_rate else 0.0,
                identical=same,
            )
        )
    return rows
