"""SGLang's speculative algorithms and ours, on the same edits, one server after the other on one machine.

    python benchmarks/sglang_comparison.py --model MODEL --repository REPOSITORY [--head EAGLE3-HEAD] [--tasks 8]

Needs SGLang in this interpreter and an index of the repository for the model (`agentspec index`). NGRAM gets the same
files as its external corpus. Prints a table in Markdown, and whether all outputs agree with plain decoding.
"""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from agentspec.benchmarking.codec import FileCodec
from agentspec.benchmarking.editing import StoredRepositories, summarise_mode
from agentspec.benchmarking.measure import Measurement, measure
from agentspec.benchmarking.tasks import KINDS, editing_tasks
from agentspec.config import Settings
from agentspec.engines.local.checkpoint import model_folder
from agentspec.engines.sglang.engine import SGLangEngine
from agentspec.index.store import find_store
from agentspec.index.tokenizer import IndexTokenizer

if TYPE_CHECKING:
    from agentspec.benchmarking.editing import EditTask
    from agentspec.index.snapshot import Snapshot

NGRAM_NODES = 16
EAGLE_FLAGS = {"speculative-num-steps": 3, "speculative-eagle-topk": 4, "speculative-num-draft-tokens": 16}


def corpus_of(snapshot: Snapshot, codec: FileCodec, folder: str) -> Path:
    """The repository as NGRAM reads it: one JSON string a line."""
    lines = [json.dumps(codec.decode(snapshot.tokens(document).tolist())) for document in snapshot.documents()]
    file = Path(folder) / "corpus.jsonl"
    file.write_text("\n".join(lines))
    return file


def algorithms(arguments: Namespace, corpus: Path) -> dict[str, dict[str, Any]]:
    """Settings of every contender."""
    ngram = {
        "speculative-algorithm": "NGRAM",
        "speculative-num-draft-tokens": NGRAM_NODES,
        "speculative-ngram-external-corpus-path": str(corpus),
        "speculative-ngram-external-sam-budget": NGRAM_NODES // 2,
    }
    found: dict[str, dict[str, Any]] = {
        "plain": {"speculation": False},
        "NGRAM, repository as corpus": {"speculation": False, "arguments": ngram},
    }
    if arguments.head:
        eagle = {"speculative-algorithm": "EAGLE3", "speculative-draft-model-path": arguments.head}
        found["EAGLE3"] = {"speculation": False, "arguments": eagle | EAGLE_FLAGS}
        found["AGENTSPEC, with the head"] = {"draft_model": arguments.head}
    found["AGENTSPEC, model-free"] = {}
    return found


async def run(settings: Settings, arguments: Namespace, tasks: list[EditTask]) -> list[Measurement]:
    """All tasks on one server, after one that warms it up."""
    repositories = StoredRepositories(settings.index.directory)
    engine = SGLangEngine(settings, arguments.model, repositories=repositories)
    await engine.start()
    try:
        warm_up = replace(tasks[0], name="warm-up", max_tokens=8)
        await measure(engine, warm_up.request(arguments.repository, speculation=True), lambda _: None)
        return [
            await measure(engine, task.request(arguments.repository, speculation=True), lambda _: None)
            for task in tasks
        ]
    finally:
        await engine.stop()


def settings_of(arguments: Namespace, options: dict[str, Any]) -> Settings:
    """Settings for one contender."""
    return Settings.load(
        engine={
            "kind": "sglang",
            "device": arguments.device,
            "threads": arguments.threads,
            "speculation": options.get("speculation", True),
            "kv_tokens": 16_384,
        },
        sglang={
            "draft_model": options.get("draft_model"),
            "arguments": {"page-size": 1, "disable-radix-cache": True} | options.get("arguments", {}),
        },
    )


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--repository", required=True)
    parser.add_argument("--head")
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    arguments.model = str(model_folder(arguments.model, Settings.load().cache_directory))
    index = Settings.load().index.directory
    fingerprint = IndexTokenizer(arguments.model, index).identity.fingerprint
    snapshot = find_store(index, Path(arguments.repository), fingerprint).current()
    codec = FileCodec.load(Path(arguments.model))
    tasks = [
        replace(task, max_tokens=min(task.max_tokens, arguments.max_tokens))
        for task in editing_tasks(snapshot, codec, list(KINDS), arguments.tasks)
    ]
    plain: list[tuple[int, ...]] | None = None
    print("| algorithm | tokens | verify steps | tokens per step | tokens/s | output |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, options in algorithms(arguments, corpus_of(snapshot, codec, folder)).items():
            measured = asyncio.run(run(settings_of(arguments, options), arguments, tasks))
            outputs = [one.token_ids for one in measured]
            plain = outputs if plain is None else plain
            total = summarise_mode(measured)
            same = sum(one == other for one, other in zip(outputs, plain, strict=True))
            print(
                f"| {name} | {total.tokens} | {total.verify_steps} | {total.tokens_per_step:.2f} "
                f"| {total.tokens_per_second:.1f} | {same} of {len(tasks)} equal to plain |",
                flush=True,
            )


if __name__ == "__main__":
    main()
