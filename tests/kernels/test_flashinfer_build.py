"""The variant compiles for GPUs that this machine need not have. Slow the first time, then cached by the build."""

import subprocess
from dataclasses import dataclass

import pytest
import torch

from agentspec.kernels.flashinfer_tree.build import KernelBuildError, build
from agentspec.kernels.flashinfer_tree.variant import TreeVariant

pytestmark = pytest.mark.sglang

FORM = TreeVariant(torch.bfloat16, torch.bfloat16, 128)


@pytest.mark.parametrize("architecture", ["8.0", "9.0a"])
def test_the_verify_kernels_compile(architecture):
    objects = build(FORM, architecture, "verify")
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
