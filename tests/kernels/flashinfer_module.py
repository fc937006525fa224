"""Stands in for what FlashInfer compiles and loads, so that its real wrappers run on the CPU up to the kernel call."""

from importlib import import_module

import torch

from agentspec.kernels.paged_tree_attention import (
    PagedBatch,
    ScoreRules,
    paged_prefix_attention,
    paged_tree_attention,
)
from agentspec.kernels.two_part_attention import merge_states

NON_CAUSAL, CAUSAL, CUSTOM = 0, 1, 2
VARIANT_ARGUMENTS = 5


class Module:
    """Keeps its calls, and computes with torch what the compiled kernels would.

    Attributes:
        planned: arguments of every `plan`.
        backends: FlashInfer's backend of every module that was asked for.
        modes: mask mode of every run.
        extra: what every run was given beside FlashInfer's own arguments.
    """

    def __init__(self):
        self.planned, self.backends, self.modes, self.extra = [], [], [], []

    def plan(self, *arguments):
        assert all(one.device.type == "cpu" for one in arguments[3:6])
        self.planned.append(arguments)
        return [0]

    def paged_run(self, *arguments):
        _, _, _, q, keys, values, rows, indptr, indices, last, out, lse, mode, _, window_left, _, *extra = arguments
        self.modes.append(mode)
        self.extra.append(extra)
        assert window_left == -1, "FlashInfer's window counts rows"
        cache = tuple(one.flatten(0, 1).double() for one in (keys, values))
        batch = PagedBatch(indptr, indices, last, keys.shape[1])
        assert (rows[1:] - rows[:-1]).eq(len(q) // len(batch)).all()
        if len(extra) == VARIANT_ARGUMENTS:
            bits, words, window, scale, cap = extra
            assert words == bits.shape[1]
            result = paged_tree_attention(q.double(), cache, batch, bits[: len(q)], ScoreRules(scale, cap, window))
        elif mode == CUSTOM:
            packed, mask_indptr, cap, scale = extra[0], extra[1], extra[6], extra[7]
            result = masked_attention(q.double(), cache, batch, (packed, mask_indptr), ScoreRules(scale, cap))
        else:  # the prefix of the two parts
            assert mode == NON_CAUSAL
            result = paged_prefix_attention(q.double(), cache, batch, ScoreRules(extra[7], extra[6]))
        out.copy_(result[0])
        if lse is not None:
            lse.copy_(result[1])


def masked_attention(query, cache, batch, mask, rules):
    """Attention under FlashInfer's packed mask."""
    packed, mask_indptr = mask
    width = len(query) // len(batch)
    outputs = []
    for b, slots in enumerate(batch.slots()):
        start = int(mask_indptr[b])
        needed = packed[start : start + -(-width * len(slots) // 8)]
        bits = (needed[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1
        visible = bits.flatten()[: width * len(slots)].view(width, -1).bool()
        q = query[b * width : (b + 1) * width].transpose(0, 1)
        keys, values = (one[slots].transpose(0, 1).repeat_interleave(len(q) // one.shape[1], 0) for one in cache)
        scores = q @ keys.mT * rules.scale
        if rules.soft_cap:
            scores = rules.soft_cap * torch.tanh(scores / rules.soft_cap)
        weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        outputs.append((weights @ values).transpose(0, 1))
    return torch.cat(outputs), torch.empty(0)


def packed_segments(mask, indptr, bitorder="little"):
    """FlashInfer's `segment_packbits`."""
    assert bitorder == "little"
    parts, ends = [], [0]
    for start, end in zip(indptr[:-1].tolist(), indptr[1:].tolist(), strict=True):
        bits = torch.nn.functional.pad(mask[start:end], (0, -(end - start) % 8)).view(-1, 8).to(torch.uint8)
        parts.append((bits << torch.arange(8, dtype=torch.uint8)).sum(-1).to(torch.uint8))
        ends.append(ends[-1] + len(parts[-1]))
    return torch.cat(parts), torch.tensor(ends, dtype=torch.int32)


def merge(one, one_sum, two, two_sum):
    """FlashInfer's `merge_state`."""
    output, sums = merge_states(torch.stack([one, two]).double(), torch.stack([one_sum, two_sum]).double())
    return output.to(one.dtype), sums


def install(monkeypatch):
    """Have FlashInfer's prefill wrappers use a `Module`, which is returned."""
    prefill = import_module("flashinfer.prefill")
    two_part = import_module("agentspec.kernels.flashinfer_tree.two_part")
    made = Module()

    def stock_module(backend, *_):
        made.backends.append(backend)
        return made

    monkeypatch.setattr(prefill, "get_customize_batch_prefill_module", lambda *_, **__: made)
    monkeypatch.setattr(prefill, "get_batch_prefill_jit_module", lambda _, module: module)
    monkeypatch.setattr(prefill, "get_batch_prefill_module", stock_module)
    monkeypatch.setattr(prefill, "_get_cache_alibi_slopes_buf", lambda *_: None)
    monkeypatch.setattr(prefill, "device_support_pdl", lambda _: False)
    monkeypatch.setattr(prefill, "segment_packbits", packed_segments)
    monkeypatch.setattr(two_part, "merge_state", merge)
    empty = torch.empty

    def without_pinning(*sizes, pin_memory=False, **options):
        return empty(*sizes, **options)

    monkeypatch.setattr(prefill.torch, "empty", without_pinning)
    return made
