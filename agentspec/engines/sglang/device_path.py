"""Merging, accepting and compacting on the device, without waiting for it in between. Needs triton.

What is drawn is drawn as on the host: greedily the token of the highest logit, the first of equals; otherwise by
SGLang's own sampler, whose noise and order of operations decide which token a seed gives. Only the walk along the
drawn tokens, the move of the accepted rows, and where possible the union of the drafts are this module's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from agentspec.drafters.tree import Source
from agentspec.engines.sglang.verify_input import Rows
from agentspec.kernels.ancestor_bits import unpack_bits
from agentspec.kernels.triton.accept import NO_PARENT, DeviceSampling, Drawn, draw_rows, follow_rows
from agentspec.kernels.triton.compaction import PathCompaction, compact_rows
from agentspec.kernels.triton.merge import merge_trees

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from agentspec.drafters.tree import DraftTree
    from agentspec.engines.sglang.eagle_trees import EagleNodes


def parent_rows(trees: Sequence[DraftTree], width: int) -> NDArray[np.int32]:
    """`int32[B, W]`: the row above each row; -1 for the root's and `NO_PARENT` for padding."""
    parents = np.full((len(trees), width), NO_PARENT, np.int32)
    parents[:, 0] = -1
    for row, tree in zip(parents, trees, strict=True):
        row[1 : len(tree) + 1] = tree.parents + 1
    return parents


def walk(drawn: Tensor | None, logits: Tensor, verify_input: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Follow the target's tokens from every root.

    Args:
        drawn: `[B, W]`, the target's token after every node; None draws greedily.
        logits: `[B * W, V]`, processed.
        verify_input: `AgentspecVerifyInput` with parents.

    Returns:
        What SGLang's `eagle_sample` returns: the target's token at every accepted node `int32[B * W]`, accepted tokens
        with the bonus token `int32[B]`, and the accepted nodes `int32[B, W]`, -1 where there are fewer.
    """
    parents = verify_input.parents
    batch, width = parents.shape
    if drawn is None:
        greedy = DeviceSampling(
            torch.zeros(batch, device=parents.device),
            torch.zeros(batch, dtype=torch.int64, device=parents.device),
            verify_input.positions.view(batch, width),
        )
        candidates = draw_rows(logits, width, greedy)
    else:
        candidates = Drawn.of(drawn)
    verdict = follow_rows(candidates, verify_input.draft_token.view(batch, width), parents)
    return verdict.tokens, verdict.counts, verdict.path


@dataclass(frozen=True, slots=True)
class MergedDrafts:
    """A verify step whose trees the host has not seen yet.

    Attributes:
        rows: what is verified.
        origins: `int32[B, W]` on the device, the node that each row was made from; see `DeviceTrees`.
        host: the trees that came from the host; origins from `host_nodes` on are EAGLE-3's.
        host_nodes: nodes that each of them was padded to.
    """

    rows: Rows
    origins: Tensor
    host: Sequence[DraftTree]
    host_nodes: int

    def sources(self) -> list[NDArray[np.uint8]]:
        """For each request, the source of every drafted node in the order of rows; waits for the device."""
        found = []
        for origins, tree in zip(self.origins.cpu().numpy(), self.host, strict=True):
            nodes = origins[origins >= 0]
            from_host = nodes < self.host_nodes
            sources = np.full(len(nodes), Source.EAGLE3, np.uint8)
            sources[from_host] = tree.source[nodes[from_host]]
            found.append(sources)
        return found


def merge(trees: Sequence[DraftTree], eagle: EagleNodes, roots: Tensor, lengths: Tensor, width: int) -> MergedDrafts:
    """Unite the host's trees with EAGLE-3's, the nodes most likely to be reached first.

    Args:
        trees: one per request.
        eagle: EAGLE-3's.
        roots: `[B]` on the device, the last committed tokens.
        lengths: `[B]` on the device, committed tokens before them.
        width: nodes per request, the root included; nodes that do not fit are left out.
    """
    device = roots.device
    nodes = max(len(tree) for tree in trees)
    packed = np.full((3, len(trees), nodes), -1, np.int32)
    reach_bits = packed[2].view(np.float32)
    reach_bits[:] = -1.0  # of padding: after everything that may be reached
    for b, tree in enumerate(trees):
        packed[0, b, : len(tree)], packed[1, b, : len(tree)] = tree.tokens, tree.parents
        reach_bits[b, : len(tree)] = tree.path_probabilities()
    host = torch.from_numpy(packed).to(device, non_blocking=True)
    tokens = torch.cat([host[0], eagle.tokens], 1)
    parents = torch.cat([host[1], torch.where(eagle.parents < 0, -1, eagle.parents + nodes)], 1)
    reach = torch.cat([host[2].view(torch.float32), eagle.reach], 1)
    order = reach.sort(dim=1, descending=True, stable=True).indices
    merged = merge_trees(roots.long(), tokens, parents.int(), order, width)
    rows = Rows(
        tokens=merged.tokens,
        positions=lengths.long()[:, None] + merged.depths,
        mask=unpack_bits(merged.bits, width),
        first_child=None,
        next_sibling=None,
        parents=merged.parents,
        nodes=[width] * len(trees),
    )
    return MergedDrafts(rows, merged.origins, trees, nodes)


class DeviceCompaction:
    """Moves what belongs to accepted nodes to the front of their request's nodes.

    Args:
        pool: SGLang's cache of the target; see `can_compact`.
    """

    def __init__(self, pool: Any) -> None:
        self._caches = PathCompaction([*pool.k_buffer, *pool.v_buffer])

    def __call__(self, batch: Any, result: Any) -> None:
        """What SGLang does to a verify step's cache entries, tokens and hidden states when it finalises a tree.

        Args:
            batch: the scheduler's, after the step.
            result: of `run_eagle_verify` without `finalize_tree_path`.
        """
        path, counts = result.accept_index, result.accept_lens
        slots = batch.out_cache_loc.view(path.shape)
        self._caches(slots, path, counts, through_batch=True)
        compact_rows(result.next_token_ids, path, counts)
        hidden = result.logits_output.hidden_states
        if hidden is not None:
            compact_rows(hidden, path, counts)


def can_compact(pool: Any) -> bool:
    """Whether a pool's cache is plain: a row per slot and layer for keys and one for values, and nothing beside them.

    Pools with scales of their own, other layouts or parts that move by other rules are left to SGLang.
    """
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    caches = [*(getattr(pool, "k_buffer", None) or ()), *(getattr(pool, "v_buffer", None) or ())]
    return (
        type(pool) is MHATokenToKVPool
        and not pool.use_hnd
        and not pool.use_native_move_kv_cache
        and getattr(pool, "k_scale_buffer", None) is None
        and len({one[0].numel() * one.element_size() for one in caches}) == 1
        and all(one.is_contiguous() and one[0].numel() * one.element_size() % 4 == 0 for one in caches)
    )
