from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from agentspec.cli.main import app
from agentspec.kernels.flashinfer_tree import build
from agentspec.kernels.flashinfer_tree.variant import TreeVariant


@pytest.fixture
def built(monkeypatch):
    """What the command asks to be built."""
    orders = []

    def record(variant, architecture, jobs):
        orders.append((variant, architecture, jobs))
        return [Path(f"/cache/{architecture}/{variant.name}.so")]

    monkeypatch.setattr(build, "build", record)
    return orders


def test_every_architecture_is_built(built):
    flags = ["--arch", "8.0", "--arch", "9.0a", "--kv-dtype", "float8_e4m3fn", "--head-dim", "64", "--jobs", "3"]
    result = CliRunner().invoke(app, ["kernels", "build", *flags])
    assert result.exit_code == 0
    form = TreeVariant(torch.bfloat16, torch.float8_e4m3fn, 64)
    assert built == [(form, "8.0", 3), (form, "9.0a", 3)]
    assert result.stdout.split() == [f"/cache/{arch}/agentspec_tree_bf16_e4m3_d64.so" for arch in ("8.0", "9.0a")]


@pytest.mark.parametrize("flags", [["--dtype", "float33"], ["--dtype", "float32"], ["--head-dim", "96"]])
def test_what_does_not_exist_is_refused(built, flags):
    result = CliRunner().invoke(app, ["kernels", "build", "--arch", "9.0a", *flags])
    assert result.exit_code == 2
    assert "there is no such kernel" in result.stderr
    assert built == []


def test_a_refusing_compiler_ends_the_command(monkeypatch):
    def refuse(variant, architecture, jobs):
        raise build.KernelBuildError(f"{variant.name} does not build for {architecture}:\nerror: no")

    monkeypatch.setattr(build, "build", refuse)
    result = CliRunner().invoke(app, ["kernels", "build", "--arch", "9.0a"])
    assert result.exit_code == 1
    assert "error: no" in result.stderr
