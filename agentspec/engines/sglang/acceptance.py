"""Acceptance of our trees: at every node the target draws its own token, with SGLang's own sampler.

The walk then follows the drawn tokens down the tree. What comes out is what plain decoding would have drawn, whatever
was drafted: exactly so when sampling is greedy or seeded (SGLang's noise depends on seed and position alone), in
distribution otherwise. Runs inside SGLang only.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from sglang.kernels.ops.speculative.spec_tree import verify_tree_greedy_func
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.layers.sampler import apply_custom_logit_processor
from sglang.srt.runtime_context import get_parallel
from sglang.srt.utils.async_probe import sanitize_nan_logits

from agentspec.engines.sglang.verify_input import IRREGULAR, AgentspecVerifyInput

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor


def sample(
    original: Callable[..., Any],
    verify_input: Any,
    batch: Any,
    logits_output: Any,
    grammar_mask: Any = None,
    *args: Any,
    **kwargs: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """AROUND SGLang's `eagle_sample`: our trees are sampled here, all others by SGLang.

    Returns:
        The target's token at every accepted node `int32[B * W]`, accepted tokens with the bonus token `int32[B]`, and
        the accepted nodes `int32[B, W]`, -1 where there are fewer.
    """
    if not isinstance(verify_input, AgentspecVerifyInput) or batch.forward_mode.is_idle():
        result: tuple[Tensor, Tensor, Tensor] = original(
            verify_input, batch, logits_output, grammar_mask, *args, **kwargs
        )
        return result
    logits = logits_output.next_token_logits
    _process(logits, verify_input, batch.sampling_info, grammar_mask)
    greedy = batch.sampling_info.is_all_greedy
    if verify_input.parents is not None:
        from agentspec.engines.sglang import device_path

        drawn = None if greedy else _draw(logits, verify_input, batch.sampling_info)
        return device_path.walk(drawn, logits, verify_input)
    if greedy:
        return _walk(logits.argmax(-1).view(-1, verify_input.draft_token_num), verify_input)
    return _walk(_draw(logits, verify_input, batch.sampling_info), verify_input)


def _process(logits: Tensor, verify_input: AgentspecVerifyInput, sampling_info: Any, grammar_mask: Any) -> None:
    """Everything that plain decoding does to logits before it samples, in its order, in place; `[B * W, V]`."""
    width = verify_input.draft_token_num
    sanitize_nan_logits(logits, "agentspec: target logits")
    _penalise(logits, verify_input)
    if grammar_mask is not None:
        grammar_mask.apply(logits)
    if sampling_info.logit_bias is not None:
        logits.add_(sampling_info.logit_bias.repeat_interleave(width, dim=0))
    if sampling_info.has_custom_logit_processor:
        apply_custom_logit_processor(logits, sampling_info, num_tokens_in_batch=width)


def _penalise(logits: Tensor, verify_input: AgentspecVerifyInput) -> None:
    width = verify_input.draft_token_num
    tokens = verify_input.draft_token.view(-1, width)
    positions = verify_input.positions.view(-1, width)
    mask = verify_input.tail_mask
    for b, penalties in enumerate(verify_input.penalties):
        if penalties is not None and mask is not None:
            nodes = verify_input.nodes[b]
            penalties.apply(
                logits[b * width : b * width + nodes],
                tokens[b, :nodes],
                mask[b, :nodes, :nodes],
                positions[b, :nodes] - positions[b, 0],
            )


def _draw(logits: Tensor, verify_input: AgentspecVerifyInput, sampling_info: Any) -> Tensor:
    """The sampled token after every node, `int64[B, W]`; padding nodes get token 0, which nothing asks for."""
    width = verify_input.draft_token_num
    drawn = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
    for truncated in (False, True):
        members = [b for b, cuts in enumerate(verify_input.truncated) if cuts is truncated]
        if members:
            owner, rows = _real_nodes(verify_input, members)
            tokens = verify_input.sampler(
                LogitsProcessorOutput(next_token_logits=logits[rows]),
                _per_node(sampling_info, owner, truncated),
                False,
                [],
                [],
                verify_input.positions[rows],
            )
            drawn[rows] = tokens.long()
    group = get_parallel().tp_group
    if group.world_size > 1:  # kernels may round differently on each GPU, and all must walk the same path
        group.broadcast(drawn, src=0)
    return drawn.view(-1, width)


def _real_nodes(verify_input: AgentspecVerifyInput, members: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Request and flat row of every node of some requests' trees, as far as the host knows padding from nodes."""
    width, nodes = verify_input.draft_token_num, verify_input.nodes
    owner = [b for b in members for _ in range(nodes[b])]
    rows = [b * width + node for b in members for node in range(nodes[b])]
    both = torch.tensor([owner, rows]).to(verify_input.positions.device, non_blocking=True)
    return both[0], both[1]


def _per_node(sampling_info: Any, owner: Tensor, truncated: bool) -> Any:
    """Sampling parameters with one row per node; logits come processed, so only the sampler's own remain.

    SGLang's noise follows the order of tokens when no request of the batch truncates its distribution and the order
    of probabilities when one does; sampling the two kinds apart makes a seed's text the same in any company.
    """
    seed = sampling_info.sampling_seed
    return dataclasses.replace(
        sampling_info,
        temperatures=sampling_info.temperatures[owner],
        top_ps=sampling_info.top_ps[owner],
        top_ks=sampling_info.top_ks[owner],
        min_ps=sampling_info.min_ps[owner],
        need_top_p_sampling=truncated and sampling_info.need_top_p_sampling,
        need_top_k_sampling=truncated and sampling_info.need_top_k_sampling,
        need_min_p_sampling=truncated and sampling_info.need_min_p_sampling,
        sampling_seed=None if seed is None else seed[owner],
        grammars=None,
        has_custom_logit_processor=False,
        sampling_mask_batch_indices=None,
    )


def _walk(drawn: Tensor, verify_input: AgentspecVerifyInput) -> tuple[Tensor, Tensor, Tensor]:
    """Follow the drawn tokens from every root; see `sample` for what is returned."""
    batch, width = drawn.shape
    predicts = torch.zeros(batch * width, dtype=torch.int32, device=drawn.device)
    accepted = torch.full((batch, width), -1, dtype=torch.int32, device=drawn.device)
    counts = torch.empty(batch, dtype=torch.int32, device=drawn.device)
    predicts, accepted, counts = verify_tree_greedy_func(
        predicts=predicts,
        accept_index=accepted,
        accept_token_num=counts,
        candidates=verify_input.draft_token.view(batch, width),
        retrieve_index=verify_input.retrieve_index,
        retrieve_next_token=verify_input.retrieve_next_token,
        retrieve_next_sibling=verify_input.retrieve_next_sibling,
        target_predict=drawn,
        topk=IRREGULAR,
    )
    return predicts, counts + 1, accepted
