"""`agentspec kernels`: compile the GPU kernels of a deployment ahead of time, and choose among them by measurement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from agentspec.cli.console import messages, output
from agentspec.cli.options import ConfigOption, ModelOption, load_settings
from agentspec.errors import InvalidRequestError

if TYPE_CHECKING:
    from agentspec.kernels.kernel_table import KernelTable

app = typer.Typer(name="kernels", help="Compile and choose the GPU kernels of a deployment.", no_args_is_help=True)


@app.callback()
def kernels() -> None:
    """Compile and choose the GPU kernels of a deployment."""


@app.command()
def build(
    arch: Annotated[
        list[str], typer.Option("--arch", help="Compute capability of the GPU, as 8.0 or 9.0a; may be repeated.")
    ],
    dtype: Annotated[str, typer.Option(help="Element type of the model: bfloat16 or float16.")] = "bfloat16",
    kv_dtype: Annotated[
        str | None, typer.Option(help="Element type of the KV cache: float8_e4m3fn, float8_e5m2; default: the model's.")
    ] = None,
    head_dim: Annotated[int, typer.Option(help="Width of an attention head: 64, 128 or 256.")] = 128,
    soft_cap: Annotated[bool, typer.Option("--soft-cap", help="The model caps its attention scores.")] = False,
    window: Annotated[bool, typer.Option("--window", help="The model has a sliding window.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Compilers at once, up to 3 GB each.")] = 1,
) -> None:
    """Compile the tree-attention kernel into FlashInfer's cache, where a server finds it; no GPU is needed.

    Takes a few minutes of processor time per architecture; what is compiled already is kept. Exit status: 0 built; 1
    the compiler is missing or refused; 2 there is no such kernel.
    """
    import torch

    from agentspec.kernels.flashinfer_tree.build import build as build_variant
    from agentspec.kernels.flashinfer_tree.variant import TreeVariant

    try:
        dtypes = [getattr(torch, name) for name in (dtype, kv_dtype or dtype)]
        variant = TreeVariant(dtypes[0], dtypes[1], head_dim, soft_cap, window)
    except (AttributeError, ValueError) as error:
        raise InvalidRequestError(f"there is no such kernel: {error}") from error
    for one in arch:
        with messages().status(f"compiling {variant.name} for {one} ..."):
            files = build_variant(variant, one, jobs=jobs)
        output().print(*files, sep="\n", soft_wrap=True)


@app.command()
def tune(config: ConfigOption = None, model: ModelOption = None) -> None:
    """Measure the verify kernels on this machine's GPU, for the model and settings of a deployment.

    Servers started afterwards choose by what is written: the fastest kernel for each width, batch and context. Takes a
    minute or two, and what is not compiled yet is compiled first. A kernel that computes something else here, or fails,
    is never chosen. Exit status: 0 measured; 1 there is no GPU or our own kernel fails; 2 there is no such kernel.
    """
    from importlib.metadata import version
    from importlib.util import find_spec

    import torch
    from transformers import AutoConfig

    from agentspec.engines.local.pull import models_directory
    from agentspec.engines.sglang.kernel_form import kernel_form
    from agentspec.kernels.kernel_table import DEFAULT, TableKey
    from agentspec.kernels.measuring.timing import Timer
    from agentspec.kernels.measuring.tuner import Grid, KernelTuningError
    from agentspec.kernels.measuring.tuner import tune as measure

    settings = load_settings(config, engine={"model": model})
    if not torch.cuda.is_available():
        raise KernelTuningError("there is no CUDA GPU here to measure on; run this on the machine that will serve")
    if find_spec("flashinfer") is None:
        raise KernelTuningError("flashinfer is not installed beside agentspec; install agentspec[sglang]")
    from agentspec.kernels.measuring.planned import WORKSPACE_BYTES, planned

    pulled = models_directory(settings.cache_directory) / settings.engine.model
    form = kernel_form(settings, AutoConfig.from_pretrained(pulled if pulled.is_dir() else settings.engine.model))
    key = TableKey(
        gpu=torch.cuda.get_device_name(),
        flashinfer=version("flashinfer-python"),
        form=form.variant.name,
        heads=form.heads,
        kv_heads=form.kv_heads,
    )
    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
    grid = Grid(rows=settings.sglang.verify_widths)
    with messages().status(f"measuring {form.variant.name} on {key.gpu} ..."):
        table = measure(key, form.variant, grid, lambda kernel, step: planned(kernel, step, workspace), Timer("cuda"))
    if DEFAULT in table.excluded:
        raise KernelTuningError(
            f"our own kernel does not work on this GPU, and nothing is written: {table.excluded[DEFAULT]}"
        )
    _show(table)
    output().print(table.save(settings.cache_directory), soft_wrap=True)


def _show(table: KernelTable) -> None:
    """The chosen kernels on stdout, and on stderr those that were left out."""
    from rich.table import Table

    shown = Table("rows", "batch", "context", "kernel", "microseconds")
    for one in table.measurements:
        kernel = table.fastest(one.rows, one.batch, one.context)
        times = ", ".join(f"{name} {time:.0f}" for name, time in sorted(one.microseconds.items()))
        shown.add_row(str(one.rows), str(one.batch), str(one.context), kernel, times)
    output().print(shown)
    for kernel, reason in table.excluded.items():
        messages().print(f"{kernel} is left out: {reason}", soft_wrap=True)
