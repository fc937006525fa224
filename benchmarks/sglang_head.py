"""One EAGLE-3 head in SGLang and in the embedded engine: accept lengths on the same prompts.

    python benchmarks/sglang_head.py --repository . --tasks 8

Both draft chains of the same length, so that nothing but arithmetic can tell them apart: SGLang by its own EAGLE3
worker and by ours with the head alone; the embedded engine by replaying the text that plain decoding gave. Needs
SGLang in this interpreter. Exits with 1 when a text differs from plain decoding's.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from argparse import ArgumentParser
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import torch

from agentspec.benchmarking.editing import StoredRepositories, summarise_mode
from agentspec.benchmarking.measure import measure
from agentspec.cli.indexed_tasks import indexed_tasks
from agentspec.config import Settings
from agentspec.drafters.base import Budget
from agentspec.drafters.eagle3.checkpoint import load_head
from agentspec.drafters.eagle3.drafter import Eagle3Drafter, shipped_head
from agentspec.drafters.eagle3.session import Growth
from agentspec.engines.local.checkpoint import Checkpoint, model_folder
from agentspec.engines.local.draft_head import EMBEDDING
from agentspec.engines.local.model import TargetModel
from agentspec.engines.sglang.engine import SGLangEngine
from agentspec.training.replay import replay_head
from agentspec.training.rollout import Rollout

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from agentspec.benchmarking.editing import EditTask
    from agentspec.benchmarking.measure import Measurement

LENGTH = 3
"""Tokens of a chain."""


def contenders(head: Path) -> dict[str, dict[str, Any]]:
    """Settings by name, plain decoding first."""
    stock = {
        "speculative-algorithm": "EAGLE3",
        "speculative-draft-model-path": str(head),
        "speculative-num-steps": LENGTH,
        "speculative-eagle-topk": 1,
        "speculative-num-draft-tokens": LENGTH + 1,
    }
    chain = {"draft_steps": LENGTH, "draft_branches": 1, "draft_nodes": LENGTH + 1}
    return {
        "SGLang, plain": {"engine": {"speculation": False}},
        "SGLang, its EAGLE3": {"engine": {"speculation": False}, "arguments": stock},
        "SGLang, AGENTSPEC with the head alone": {"sglang": {"draft_model": str(head), "model_free": False, **chain}},
    }


async def run(settings: Settings, model: Path, repository: str, tasks: Sequence[EditTask]) -> list[Measurement]:
    """All tasks on one server."""
    engine = SGLangEngine(settings, str(model), repositories=StoredRepositories(settings.index.directory))
    await engine.start()
    try:
        return [await measure(engine, task.request(repository, speculation=True)) for task in tasks]
    finally:
        await engine.stop()


def difference(task: EditTask, one: Sequence[int], other: Sequence[int]) -> str:
    """Where two outputs of a task part."""
    place = next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), "the end")
    return f"{task.name} ({task.kind}): {len(one)} tokens, {len(other)} expected; they differ at {place}"


def embedded(folder: Path, head: Path, sequences: Sequence[tuple[list[int], tuple[int, ...]]], threads: int) -> float:
    """Tokens per step of the embedded engine's head on texts that are known.

    Args:
        folder: the target.
        head: the head.
        sequences: prompts and outputs.
        threads: of the target.
    """
    model = TargetModel.load(str(folder), folder, device="cpu", dtype="bfloat16", threads=threads)
    embedding = Checkpoint(folder).fetch(EMBEDDING)
    assert embedding is not None
    vocab_size, hidden = embedding.shape
    weights = load_head(head, hidden=hidden, vocab_size=vocab_size, dtype=torch.bfloat16)
    growth = Growth(depth=LENGTH, width=1, children=1, min_path_prob=0.0, level_gain=0.0)
    drafter = Eagle3Drafter(weights, embedding, model.layout.layers, growth, threads)
    read = Rollout(model, drafter.capture).generate([[*prompt, *output] for prompt, output in sequences], max_new=0)
    features = [replace(one, prompt_length=len(prompt)) for one, (prompt, _) in zip(read, sequences, strict=True)]
    return replay_head(drafter, features, Budget(LENGTH, LENGTH, min_path_prob=0.0)).tokens_per_step


def main() -> int:
    """Run."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--head", type=Path, help="a folder; default: the head shipped for the model")
    parser.add_argument("--repository", type=Path, default=Path())
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    settings = Settings.load(engine={"model": arguments.model})
    folder = model_folder(arguments.model, settings.cache_directory)
    head = arguments.head or shipped_head(arguments.model)
    if head is None:
        parser.error(f"no head comes with {arguments.model}; name one with --head")
    _, codec, tasks = indexed_tasks(settings, folder, arguments.repository, None, arguments.tasks)
    tasks = [replace(task, max_tokens=min(task.max_tokens, arguments.max_tokens)) for task in tasks]
    print("| engine | tokens | verify steps | tokens per step | equal to plain |\n| --- | --- | --- | --- | --- |")
    plain: list[tuple[int, ...]] = []
    equal = True
    for name, options in contenders(head.resolve()).items():
        chosen = Settings.load(
            engine={"kind": "sglang", "device": "cpu", "threads": arguments.threads, "kv_tokens": 16_384}
            | options.get("engine", {}),
            sglang=options.get("sglang", {})
            | {"arguments": {"page-size": 1, "disable-radix-cache": True} | options.get("arguments", {})},
        )
        measured = asyncio.run(run(chosen, folder, str(arguments.repository.resolve()), tasks))
        outputs = [one.token_ids for one in measured]
        plain = plain or outputs
        total = summarise_mode(measured)
        same = sum(one == other for one, other in zip(outputs, plain, strict=True))
        equal &= same == len(tasks)
        figures = f"{total.tokens} | {total.verify_steps} | {total.tokens_per_step:.2f} | {same} of {len(tasks)}"
        print(f"| {name} | {figures} |", flush=True)
        for task, one, other in zip(tasks, outputs, plain, strict=True):
            if one != other:
                print(difference(task, one, other), file=sys.stderr, flush=True)
    sequences = [(codec.encode(task.prompt), output) for task, output in zip(tasks, plain, strict=True)]
    rate = embedded(folder, head, [one for one in sequences if len(one[1]) > 1], arguments.threads)
    print(f"| embedded, the head alone on the same texts | | | {rate:.2f} | |")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
