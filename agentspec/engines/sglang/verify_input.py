"""The draft trees of a batch as the input of SGLang's verify step. Runs inside SGLang only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from sglang.kernels.ops.speculative.spec_tree import TreeMaskMode
from sglang.srt.speculative.eagle_info import EagleVerifyInput
from sglang.srt.speculative.eagle_utils import default_tree_mask_mode

from agentspec.engines.sglang._native import pack
from agentspec.kernels.full_mask import full_mask

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from agentspec.drafters.tree import DraftTree
    from agentspec.engines.sglang.penalties import PathPenalties

IRREGULAR = -1
"""SGLang's branching factor of trees without a fixed one."""
CHAIN = 1
"""SGLang's branching factor of a tree that is a chain; its attention then needs no mask."""


@dataclass
class AgentspecVerifyInput(EagleVerifyInput):  # type: ignore[misc]
    """Our trees; what differs from EAGLE's is their shape and how they are sampled.

    Attributes:
        nodes: per request, rows that may be reached, the root's included; the rest are padding.
        tail_mask: `bool[B, W, W]` on the device, row i marks the nodes that node i sees.
        parents: `int32[B, W]` on the device, the row above each row, where acceptance is to run there; see
            `agentspec.kernels.triton.accept`.
        penalties: per request, where it asks for any.
        truncated: per request, whether top-k, top-p or min-p cut its distribution.
        sampler: SGLang's own sampler of the target.
    """

    nodes: list[int] = field(default_factory=list)
    tail_mask: Tensor | None = None
    parents: Tensor | None = None
    penalties: list[PathPenalties | None] = field(default_factory=list)
    truncated: list[bool] = field(default_factory=list)
    sampler: Any = None

    @property
    def max_tree_depth(self) -> int:
        """Nodes on the longest path that a tree of this width can hold, the root included."""
        return int(self.draft_token_num)

    @property
    def tree_topk(self) -> int:
        """Branching factor for SGLang's kernels."""
        return CHAIN if self.draft_token_num == 1 else IRREGULAR


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a verify step on the device.

    Attributes:
        tokens: `int64[B, W]`.
        positions: `int64[B, W]`.
        mask: `bool[B, W, W]`, what every row sees of the rows.
        first_child: `int64[B, W]`, -1 for none; None where acceptance follows `parents`.
        next_sibling: likewise.
        parents: `int32[B, W]`, or None where acceptance follows the links.
        nodes: per request, rows that may be reached, the root's included.
    """

    tokens: Tensor
    positions: Tensor
    mask: Tensor
    first_child: Tensor | None
    next_sibling: Tensor | None
    parents: Tensor | None
    nodes: list[int]


def host_rows(
    trees: Sequence[DraftTree],
    roots: NDArray[np.int64],
    lengths: NDArray[np.int64],
    width: int,
    device: str,
    *,
    with_parents: bool,
) -> Rows:
    """Lay out trees for a verify step of `width` nodes per request.

    Args:
        trees: one per request, each of less than `width` nodes.
        roots: `int64[B]`, the last committed tokens.
        lengths: `int64[B]`, committed tokens before them.
        width: nodes per request, the root included; shorter trees are padded with nodes that no link leads to.
        device: where the target is.
        with_parents: whether acceptance runs on the device.
    """
    packed = pack([tree.tokens for tree in trees], [tree.parents for tree in trees], roots, lengths, width)
    tokens, positions, mask, first_child, next_sibling = (
        torch.from_numpy(array).to(device, non_blocking=True) for array in packed
    )
    parents = None
    if with_parents:
        from agentspec.engines.sglang.device_path import parent_rows

        parents = torch.from_numpy(parent_rows(trees, width)).to(device, non_blocking=True)
    nodes = [len(tree) + 1 for tree in trees]
    return Rows(tokens, positions, mask, first_child, next_sibling, parents, nodes)


def verify_input_of(
    rows: Rows,
    lengths: NDArray[np.int64],
    *,
    target_worker: Any,
    penalties: list[PathPenalties | None],
    truncated: list[bool],
) -> AgentspecVerifyInput:
    """The input of SGLang's verify step.

    Args:
        rows: what is verified.
        lengths: `int64[B]`, committed tokens before the roots.
        target_worker: SGLang's worker of the target.
        penalties: per request, or None.
        truncated: per request, whether its distribution is cut before sampling.
    """
    tokens = rows.tokens
    width = tokens.shape[1]
    runner = target_worker.model_runner
    return AgentspecVerifyInput(
        draft_token=tokens.flatten(),
        custom_mask=_attention_mask(rows.mask, lengths, runner.attn_backend),
        positions=rows.positions.flatten(),
        retrieve_index=torch.arange(tokens.numel(), device=tokens.device).view(tokens.shape),
        retrieve_next_token=rows.first_child,
        retrieve_next_sibling=rows.next_sibling,
        retrieve_cum_len=None,
        spec_steps=width - 1,
        topk=IRREGULAR,
        draft_token_num=width,
        capture_hidden_mode=None,
        seq_lens_sum=None,
        seq_lens_cpu=None,
        nodes=rows.nodes,
        tail_mask=rows.mask,
        parents=rows.parents,
        penalties=penalties,
        truncated=truncated,
        sampler=runner.sampler,
    )


def _attention_mask(tail: Tensor, lengths: NDArray[np.int64], attention_backend: Any) -> Tensor:
    """The mask in the layout that the attention backend reads: the tail alone, or with the prefix before it."""
    owned = attention_backend.verify_mask
    layout = default_tree_mask_mode() if owned is None else owned.mode
    if layout == TreeMaskMode.QLEN_ONLY:
        mask = tail.flatten()
    elif layout == TreeMaskMode.FULL_MASK:
        mask = full_mask(tail, lengths.tolist())
    else:
        raise NotImplementedError(f"the attention backend wants its tree mask as {layout.name}")
    if owned is not None and owned.fits(len(tail)):
        buffer: Tensor = owned.buffer
        buffer[: len(mask)].copy_(mask)
        return buffer
    return mask
