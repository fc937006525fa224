"""Plain and verify steps of the embedded engine against the machine's own floor, and against llama.cpp.

    python benchmarks/plain_decoding.py --dtype bfloat16 --threads 1
    python benchmarks/plain_decoding.py --dtype bfloat16 --threads 1 --gguf SmolLM2-135M-Instruct.Q4_1.gguf

Everything is timed in turn, round after round, so that other work on the machine meets all of it alike; the fastest
and the median round are shown. Times are processor time over threads: on an idle machine those of the clock, on a busy
one without the turns of other programs. The floor is the time in which as many threads read the same bytes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.table import Table

from agentspec.benchmarking.llama_cpp import LlamaCpp, require_llama_cpp
from agentspec.config import Settings
from agentspec.engines.local.hardware import processor_name, read_bandwidth
from agentspec.engines.local.model import SequenceInput, TargetModel
from agentspec.engines.local.native_model import NativeModel

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 64)
PREFILL = 512
LLAMA_STEPS = 32
FIRST_PLAIN_TOKEN, LAST_PLAIN_TOKEN = 1_000, 40_000
"""Random prompts hold no special tokens."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--context", type=int, default=512, help="committed tokens before each step")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--gguf", type=Path, help="also time llama.cpp (pip install xllamacpp) on this file")
    options = parser.parse_args()
    if options.gguf:
        require_llama_cpp(options.gguf)

    model = TargetModel.load(
        options.model, Settings.load().cache_directory, device="cpu", dtype=options.dtype, threads=options.threads
    )
    assert isinstance(model, NativeModel)
    floor = {"floor": lambda: model.weight_bytes / read_bandwidth(options.threads, 3)}
    seconds = time_in_turn(floor | agentspec_steps(model, options.context), options.rounds)
    if options.gguf:
        # Apart from the others: its server's threads go on for a while after a request.
        seconds |= time_in_turn(llama_steps(options.gguf, options.context, options.threads), options.rounds)
    setting = f"{options.dtype}, threads {options.threads}, context {options.context}"
    show(seconds, f"{processor_name()}, {model.instruction_set}, {setting}")


def time_in_turn(timed: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each function in each round."""
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(rounds):
        for name, measure in timed.items():
            seconds[name].append(measure())
    return seconds


def agentspec_steps(model: NativeModel, context: int) -> dict[str, Callable[[], float]]:
    """Steps of each size behind `context` tokens, and a prefill of `PREFILL` tokens."""
    cache = model.new_cache(context + max(*SIZES, PREFILL))
    text = torch.randint(model.vocab_size, (context,), generator=torch.Generator().manual_seed(0))
    if context:
        model.forward([SequenceInput(cache, text, torch.arange(context), None, torch.tensor([context - 1]))])

    def step(count: int, rows: torch.Tensor | None) -> float:
        cache.length = context
        tokens = torch.randint(model.vocab_size, (count,))
        inputs = [SequenceInput(cache, tokens, torch.arange(context, context + count), None, rows)]
        begin = time.process_time()
        model.forward(inputs)
        return (time.process_time() - begin) / model.threads

    steps: dict[str, Callable[[], float]] = {f"T({size})": partial(step, size, None) for size in SIZES}
    # Behind the steps' context too, so that the context survives the rounds.
    steps[f"prefill {PREFILL}"] = partial(step, PREFILL, torch.tensor([PREFILL - 1]))
    return steps


def llama_steps(gguf: Path, context: int, threads: int) -> dict[str, Callable[[], float]]:
    """A plain step behind `context` tokens, averaged over `LLAMA_STEPS`, and a prefill of `PREFILL` tokens."""
    llama = LlamaCpp(gguf, max(context, PREFILL) + LLAMA_STEPS + 64, threads, batch=PREFILL)

    def seconds(prompt: list[int], count: int) -> float:
        begin = time.process_time()
        llama.complete(prompt, count, ignore_eos=True)
        return (time.process_time() - begin) / threads

    def random_prompt(length: int) -> list[int]:
        tokens: list[int] = torch.randint(FIRST_PLAIN_TOKEN, LAST_PLAIN_TOKEN, (length,)).tolist()
        return tokens

    def step() -> float:
        prompt = random_prompt(context)
        seconds(prompt, 1)  # prefill; what follows finds it in the cache
        return seconds(prompt, LLAMA_STEPS) / LLAMA_STEPS

    return {
        "llama.cpp T(1)": step,
        f"llama.cpp prefill {PREFILL}": lambda: seconds(random_prompt(PREFILL), 1),
    }


def show(seconds: dict[str, list[float]], title: str) -> None:
    floor = min(seconds["floor"])
    table = Table("", "fastest, ms", "median, ms", "fastest / floor", title=title)
    for name, values in seconds.items():
        best, median = min(values), statistics.median(values)
        table.add_row(name, f"{best * 1e3:.1f}", f"{median * 1e3:.1f}", f"{best / floor:.2f}")
    Console(highlight=False, width=120).print(table)


if __name__ == "__main__":
    main()
