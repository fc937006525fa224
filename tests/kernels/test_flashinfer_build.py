"""The variant compiles for GPUs that this machine need not have. Slow the first time, then cached by the build."""

import subprocess
from dataclasses import dataclass

import pytest
import torch

from agentspec.kernels.flashinfer_tree.build import KernelBuildError, build
from agentspec.kernels.flashinfer_tree.variant import TreeVariant

pytestmark = pytest.mark.sglang

FORM = TreeVariant(torch.bfloat16, torch.bfloat16, 128)


WITH_RULES = TreeVariant(torch.float16, torch.float8_e4m3fn, 64, soft_cap=True, window=True)
WIDE_HEADS = TreeVariant(torch.bfloat16, torch.bfloat16, 256)


@pytest.mark.parametrize(
    ("form", "architecture"), [(FORM, "8.0"), (FORM, "9.0a"), (WITH_RULES, "9.0a"), (WIDE_HEADS, "8.0")]
)
def test_the_verify_kernels_compile(form, architecture):
    """Between them: both query types, an 8-bit cache, every head dimension, a soft cap and a sliding window."""
    objects = build(form, architecture, "verify")
    assert len(objects) == 1
    sections = subprocess.run(["readelf", "-S", "-W", objects[0]], capture_output=True, text=True, check=True).stdout
    assert ".nv_fatbin" in sections


@dataclass(frozen=True, slots=True)
class Broken(TreeVariant):
    @property
    def name(self):
        return "agentspec_tree_broken"

    @property
    def source(self):
        return TreeVariant.source.fget(self).replace("ancestors + qo_idx * words", "ancestors[qo_idx * words]")


def test_a_broken_variant_does_not():
    with pytest.raises(KernelBuildError, match="agentspec_tree_broken does not build") as failure:
        build(Broken(torch.bfloat16, torch.bfloat16, 128), "9.0a", "verify")
    assert "error" in str(failure.value)
