"""`agentspec kernels`: compile the GPU kernels of a deployment ahead of time."""

from __future__ import annotations

from typing import Annotated

import typer

from agentspec.cli.console import messages, output
from agentspec.errors import InvalidRequestError

app = typer.Typer(name="kernels", help="Compile the GPU kernels ahead of time.", no_args_is_help=True)


@app.callback()
def kernels() -> None:
    """Compile the GPU kernels ahead of time."""


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
