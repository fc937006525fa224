"""The wrapper of every verify kernel, all planned and run alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flashinfer import BatchPrefillWithPagedKVCacheWrapper

from agentspec.kernels.flashinfer_tree.two_part import TwoPartWrapper
from agentspec.kernels.flashinfer_tree.wrapper import TreeAttentionWrapper
from agentspec.kernels.verify_kernels import VerifyKernel

if TYPE_CHECKING:
    import torch

    from agentspec.kernels.flashinfer_tree.variant import TreeVariant


def make_wrapper(
    kernel: VerifyKernel, workspace: torch.Tensor, variant: TreeVariant, bits: torch.Tensor, **graph_buffers: Any
) -> Any:
    """A wrapper with FlashInfer's `begin_forward` and `forward`.

    Args:
        kernel: which.
        workspace: FlashInfer's float workspace.
        variant: the compiled form; of the stock kernel only its types matter.
        bits: `int64[rows, words]`, read at every run; the stock kernel takes a mask with its plan instead.
        graph_buffers: FlashInfer's, and those of the wrapper's own class, for CUDA graphs.
    """
    if kernel is VerifyKernel.STOCK:
        return BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend="fa2", **graph_buffers)
    if kernel is VerifyKernel.TWO_PART:
        return TwoPartWrapper(workspace, variant, bits, **graph_buffers)
    if kernel is VerifyKernel.TWO_PART_FA3:
        return TwoPartWrapper(workspace, variant, bits, prefix_backend="fa3", **graph_buffers)
    return TreeAttentionWrapper(workspace, variant, bits, diagonal=kernel is VerifyKernel.DIAGONAL, **graph_buffers)
