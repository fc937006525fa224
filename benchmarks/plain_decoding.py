"""Plain and verify steps of the embedded engine against the machine's own floor, and against llama.cpp.

    python benchmarks/plain_decoding.py --dtype bfloat16 --threads 1
    python benchmarks/plain_decoding.py --dtype bfloat16 --threads 1 --gguf SmolLM2-135M-Instruct.Q4_1.gguf

Everything is timed in turn, round after round, so that other work on the machine meets all of it alike; the fastest
and the median round are shown. The floor is the time in which the same bytes are read, by the same number of threads.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.table import Table

from agentspec.config import Settings
from agentspec.engines.local.hardware import processor_name, read_bandwidth
from agentspec.engines.local.model import SequenceInput, TargetModel
from agentspec.engines.local.native_model import NativeModel

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = (1, 2, 4, 8, 16, 32, 64)
PREFILL = 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--context", type=int, default=512, help="committed tokens before each step")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--gguf", help="also time llama.cpp (needs llama-cpp-python) on this file")
    options = parser.parse_args()

    model = TargetModel.load(
        options.model, Settings.load().cache_directory, device="cpu", dtype=options.dtype, threads=options.threads
    )
    assert isinstance(model, NativeModel)
    timed: dict[str, Callable[[], float]] = {"floor": lambda: model.weight_bytes / read_bandwidth(options.threads, 1)}
    timed |= agentspec_steps(model, options.context)
    if options.gguf:
        timed |= llama_steps(options.gguf, options.context, options.threads)
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(options.rounds):
        for name, measure in timed.items():
            seconds[name].append(measure())
    setting = f"{options.dtype}, threads {options.threads}, context {options.context}"
    show(seconds, f"{processor_name()}, {model.instruction_set}, {setting}")


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
        begin = time.perf_counter()
        model.forward(inputs)
        return time.perf_counter() - begin

    steps: dict[str, Callable[[], float]] = {f"T({size})": partial(step, size, None) for size in SIZES}
    # Behind the steps' context too, so that the context survives the rounds.
    steps[f"prefill {PREFILL}"] = partial(step, PREFILL, torch.tensor([PREFILL - 1]))
    return steps


def llama_steps(gguf: str, context: int, threads: int) -> dict[str, Callable[[], float]]:
    """The same steps by llama.cpp on its own 4-bit weights."""
    from llama_cpp import Llama  # noqa: PLC0415 - not a dependency

    llama = Llama(
        gguf,
        n_ctx=context + max(*SIZES, PREFILL) + 1,
        n_batch=max(context, PREFILL),
        n_ubatch=max(context, PREFILL),
        n_threads=threads,
        n_threads_batch=threads,
        logits_all=True,
        verbose=False,
    )
    generator = torch.Generator().manual_seed(0)
    if context:
        llama.eval(torch.randint(llama.n_vocab(), (context,), generator=generator).tolist())

    def step(count: int) -> float:
        tokens = torch.randint(llama.n_vocab(), (count,)).tolist()
        begin = time.perf_counter()
        llama.eval(tokens)
        elapsed = time.perf_counter() - begin
        llama.n_tokens = context  # the next step overwrites these
        return elapsed

    return {f"llama.cpp T({size})": partial(step, size) for size in (*SIZES, PREFILL)}


def show(seconds: dict[str, list[float]], title: str) -> None:
    floor = min(seconds["floor"])
    table = Table("", "fastest, ms", "median, ms", "fastest / floor", title=title)
    for name, values in seconds.items():
        best, median = min(values), statistics.median(values)
        table.add_row(name, f"{best * 1e3:.1f}", f"{median * 1e3:.1f}", f"{best / floor:.2f}")
    Console(highlight=False, width=120).print(table)


if __name__ == "__main__":
    main()
