"""The embedded engine with each kind of draft, on the same requests in one run, against its own plain decoding.

    python benchmarks/draft_sources.py --repository . --prompts 12

Modes take turns on every request, so that drift of the machine favours none. Texts that differ end the run with 1.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import defaultdict
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from agentspec.benchmarking.codec import FileCodec
from agentspec.benchmarking.editing import StoredRepositories, summarise_mode
from agentspec.benchmarking.measure import measure
from agentspec.benchmarking.tasks import KINDS, editing_tasks
from agentspec.cli.ready_model import ready_model
from agentspec.cli.session import index_repository
from agentspec.config import Settings
from agentspec.drafters.eagle3.drafter import shipped_head
from agentspec.drafters.fused_drafter import FusedDrafter
from agentspec.drafters.tree_drafter import TreeDrafter
from agentspec.engines.local.engine import LocalEngine
from agentspec.engines.local.target import load_target
from agentspec.index.store import IndexStore

if TYPE_CHECKING:
    from agentspec.benchmarking.editing import EditTask
    from agentspec.benchmarking.measure import Measurement
    from agentspec.drafters.base import Drafter, StreamDrafter
    from agentspec.engines.local.target import Target

PLAIN = "plain"


class FreeRows:
    """A cost curve that makes drafted tokens free, for tokens per step as a machine with room to spare would see."""

    def seconds(self, rows: int, context: int) -> float:  # noqa: ARG002
        """Much longer than any drafter takes."""
        return 1.0


async def run(
    target: Target, settings: Settings, tasks: list[EditTask], repository: str
) -> dict[str, dict[str, list[Measurement]]]:
    """Measurements by kind of edit, then by mode."""
    tree = TreeDrafter()
    drafters: dict[str, Drafter | StreamDrafter] = {PLAIN: tree, "model-free": tree}
    if target.head is not None:
        drafters |= {
            "EAGLE-3": FusedDrafter(tree, target.head, alone=True),
            "fused": FusedDrafter(tree, target.head),
        }
    measured: dict[str, dict[str, list[Measurement]]] = defaultdict(lambda: defaultdict(list))
    async with AsyncExitStack() as stack:
        engines = {}
        for mode, drafter in drafters.items():
            repositories = StoredRepositories(settings.index.directory)
            engine = LocalEngine(settings, repositories=repositories, drafter=drafter, load=lambda _: target)
            await engine.start()
            stack.push_async_callback(engine.stop)
            engines[mode] = engine
        modes = list(drafters)
        for number, task in enumerate([tasks[0], *tasks]):
            turn = number % len(modes)
            for mode in modes[turn:] + modes[:turn]:
                request = task.request(repository, speculation=mode != PLAIN)
                one = await measure(engines[mode], request)
                if number:  # the first round warms everything up
                    measured[task.kind][mode].append(one)
    return measured


def report(measured: dict[str, dict[str, list[Measurement]]]) -> bool:
    """Print a table; whether all modes gave the same texts."""
    print("| kind | mode | tokens/step | drafted/step | tokens/s | of plain |\n| --- | --- | --- | --- | --- | --- |")
    pooled: dict[str, list[Measurement]] = defaultdict(list)
    identical = True
    for kind, by_mode in [*measured.items(), ("all", pooled)]:
        plain = summarise_mode(by_mode[PLAIN])
        for mode, many in by_mode.items():
            summary = summarise_mode(many)
            drafted = sum(sum(one.receipt.drafted.values()) for one in many) / max(1, summary.verify_steps)
            ratio = summary.decode_tokens_per_second / plain.decode_tokens_per_second
            print(
                f"| {kind} | {mode} | {summary.tokens_per_step:.2f} | {drafted:.1f} "
                f"| {summary.decode_tokens_per_second:.1f} | {ratio:.2f} |"
            )
            if kind != "all":
                pooled[mode] += many
                identical &= [one.token_ids for one in many] == [one.token_ids for one in by_mode[PLAIN]]
    return identical


def main() -> int:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repository", type=Path, default=Path())
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--kind", action="append", choices=list(KINDS))
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--head", help="a folder; default: the head shipped for the model, if any")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--free-rows", action="store_true", help="as if verifying drafted tokens cost nothing")
    arguments = parser.parse_args()
    settings = Settings.load(
        engine={
            "model": arguments.model,
            "draft_head": str(arguments.head or shipped_head(arguments.model) or "none"),
            "threads": arguments.threads,
            "retained_prefixes": 0,
            "max_running": 1,
            "kv_tokens": 4096,
        },
    )
    folder = ready_model(settings)
    store = IndexStore(index_repository(settings, arguments.repository).store)
    tasks = editing_tasks(store.current(), FileCodec.load(folder), arguments.kind or list(KINDS), arguments.prompts)
    target = load_target(settings)
    if arguments.free_rows:
        target = replace(target, cost=FreeRows())
    measured = asyncio.run(run(target, settings, tasks, str(arguments.repository.resolve())))
    identical = report(measured)
    print("texts identical" if identical else "TEXTS DIFFER")
    return 0 if identical else 1


if __name__ == "__main__":
    sys.exit(main())
