"""Compares the stand-ins with SGLang's own Triton kernels. Run by test_oracle.py with Triton's interpreter on."""

import random

import torch
import triton

from agentspec.kernels.sgl_cpu import install, slots, trees

install()

from sglang.kernels.ops.sampling import murmur_hash  # noqa: E402
from sglang.kernels.ops.speculative import cache_locs, eagle, reconstruct_tree, spec_tree  # noqa: E402
from sglang.srt.speculative.eagle_utils import organize_draft_results  # noqa: E402
from sglang.srt.speculative.spec_utils import select_top_k_tokens  # noqa: E402

VOCABULARY = 50
TRIALS = 12


def beam(batch: int, topk: int, steps: int, nodes: int):
    """A draft as EAGLE makes it: parents, chosen candidates, tokens."""
    scores, kept, hidden = None, [], torch.zeros(batch, 4)
    rows = batch
    for step in range(steps):
        chances = torch.rand(rows, topk).sort(-1, descending=True).values
        tokens = torch.randint(0, VOCABULARY, (rows, topk))
        _, hidden, scores, info = select_top_k_tokens(step, chances, tokens, hidden, scores, topk)
        kept.append(info)
        rows, hidden = batch * topk, torch.zeros(batch * topk, 4)
    return organize_draft_results(*map(list, zip(*kept, strict=True)), nodes)


def check(name: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert torch.equal(ours.long(), theirs.long()), f"{name}:\n{ours}\n{theirs}"


def compare_trees() -> None:
    batch, topk, steps = random.randint(1, 3), random.choice([1, 2, 4]), random.randint(1, 4)
    most = topk + (steps - 1) * topk**2
    nodes = steps + 1 if topk == 1 else random.randint(2, min(most, 9) + 1)
    parents, chosen, drafted = beam(batch, topk, steps, nodes)
    lengths = torch.randint(3, 9, (batch,))
    links = masks = None
    for mode in (trees.MaskLayout.FULL, trees.MaskLayout.TAIL):
        size = batch * nodes * nodes + (int(lengths.sum()) * nodes if mode is trees.MaskLayout.FULL else 0)
        results = []
        for build in (trees.build_tree_kernel_efficient_cpu, spec_tree.sgl_build_tree_kernel_triton):
            mask, positions = torch.ones(size, dtype=torch.bool), torch.zeros(batch * nodes, dtype=torch.int64)
            out = torch.full((3, batch, nodes), -1)
            layout = spec_tree.TreeMaskMode(mode)
            build(parents.contiguous(), chosen.contiguous(), lengths, mask, positions, *out, topk, steps, nodes, layout)
            results.append((mask, positions, out))
        for name, ours, theirs in zip(("mask", "positions", "links"), *results, strict=True):
            check(f"build {mode.name} {name}", ours, theirs)
        masks, links = results[0][0], results[0][2]
    compare_walk(torch.cat([torch.randint(0, VOCABULARY, (batch, 1)), drafted], 1), links, steps)
    compare_reconstruction(masks, lengths, batch, nodes)


def compare_walk(tokens: torch.Tensor, links: torch.Tensor, steps: int) -> None:
    batch, nodes = tokens.shape
    wanted = torch.randint(0, VOCABULARY, (batch, nodes))
    for b in range(batch):
        for node in range(nodes):
            child = int(links[1, b, node])
            if child >= 0 and random.random() < 0.8:
                wanted[b, node] = tokens[b, child]
    results = []
    for walk in (trees.verify_tree_greedy_cpu, spec_tree.verify_tree_greedy_triton):
        predicts = torch.zeros(batch * nodes, dtype=torch.int32)
        accepted = torch.full((batch, steps + 1), -1, dtype=torch.int32)
        counts = torch.zeros(batch, dtype=torch.int32)
        walk(predicts, accepted, counts, tokens, *links, wanted)
        results.append((predicts, accepted, counts))
    for name, ours, theirs in zip(("predicts", "accepted", "counts"), *results, strict=True):
        check(f"walk {name}", ours, theirs)


def compare_reconstruction(mask: torch.Tensor, lengths: torch.Tensor, batch: int, nodes: int) -> None:
    results = []
    theirs = reconstruct_tree.reconstruct_indices_from_tree_mask_triton
    for rebuild in (trees.reconstruct_indices_from_tree_mask, theirs):
        positions, out = torch.zeros(batch * nodes, dtype=torch.int64), torch.full((3, batch, nodes), -7)
        rebuild(mask, lengths, positions, *out, batch, nodes)
        results.append((positions, out))
    for name, one, other in zip(("positions", "links"), *results, strict=True):
        check(f"reconstruction {name}", one, other)


def compare_slots() -> None:
    batch, width, topk, steps = random.randint(1, 4), 64, random.choice([1, 3]), random.randint(1, 4)
    table = torch.randint(0, 999, (6, width), dtype=torch.int32)
    requests, lengths = torch.randperm(6)[:batch], torch.randint(1, 20, (batch,))
    ends = lengths + torch.randint(1, 6, (batch,))
    ours, theirs = torch.zeros(2, int((ends - lengths).sum()), dtype=torch.int64)
    block = triton.next_power_of_2(batch)
    slots.assign_extend_cache_locs_cpu(requests, table, lengths, ends, ours, width)
    cache_locs.assign_extend_cache_locs[(batch,)](requests, table, lengths, ends, theirs, width, block)
    check("extend slots", ours, theirs)
    ours, theirs = torch.zeros(2, batch * topk * steps, dtype=torch.int64)
    slots.assign_draft_cache_locs_contiguous_cpu(requests, table, lengths, ours, width, topk, steps)
    cache_locs.assign_draft_cache_locs_contiguous[(batch,)](requests, table, lengths, theirs, width, topk, steps)
    check("draft slots", ours, theirs)
    accepted = torch.tensor([random.choice([-1, random.randrange(12)]) for _ in range(16)], dtype=torch.int32)
    all_slots, (ours, theirs) = torch.randint(0, 999, (12,)), torch.zeros(2, 16, dtype=torch.int64)
    slots.fill_accept_out_cache_loc_cpu(accepted, all_slots, ours)
    eagle.fill_accept_out_cache_loc[(16,)](accepted, all_slots, theirs, 16)
    check("accepted slots", ours, theirs)
    tokens = torch.randint(0, VOCABULARY, (batch, 5), dtype=torch.int32)
    lens = torch.randint(1, 6, (batch,), dtype=torch.int32)
    ours, theirs = torch.zeros(2, batch, dtype=torch.int32)
    slots.fill_bonus_tokens_cpu(tokens, lens, ours, 5)
    eagle.fill_bonus_tokens[(batch,)](tokens, lens, theirs, 5)
    check("bonus tokens", ours, theirs)


def compare_noise() -> None:
    seeds = torch.randint(0, 2**62, (3,)).to(torch.uint64)
    positions, columns = torch.randint(0, 2**31, (3,)), torch.arange(300)
    theirs = torch.empty(3, 300, dtype=torch.uint32)
    grid = (3, triton.cdiv(300, 128))
    murmur_hash.murmur_hash32_kernel[grid](seeds, positions, columns, theirs, 3, 300, BLOCK_SIZE=128)
    check("noise", torch.ops.sgl_kernel.murmur_hash32_cpu(seeds, positions, columns), theirs)


if __name__ == "__main__":
    random.seed(0)
    torch.manual_seed(0)
    for _ in range(TRIALS):
        compare_trees()
        compare_slots()
        compare_noise()
    print("all equal")
