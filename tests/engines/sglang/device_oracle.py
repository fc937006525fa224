"""Compares the device path with the host path, step by step. Run by test_oracle.py with Triton's interpreter on."""

import random
from types import SimpleNamespace

import numpy as np
import torch

from agentspec.kernels.sgl_cpu import install, trees

install()

from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool  # noqa: E402
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo  # noqa: E402
from sglang.srt.speculative.eagle_worker_common import _compact_accept_to_front  # noqa: E402

from agentspec.drafters.base import Budget  # noqa: E402
from agentspec.drafters.tree import DraftTree, Source  # noqa: E402
from agentspec.engines.sglang import acceptance, device_path, device_trial, device_use  # noqa: E402
from agentspec.engines.sglang.eagle_trees import eagle_nodes, eagle_trees  # noqa: E402
from agentspec.engines.sglang.penalties import PathPenalties, PenaltyRule  # noqa: E402
from agentspec.engines.sglang.verdict import accepted_sources  # noqa: E402
from agentspec.engines.sglang.verify_input import host_rows, verify_input_of  # noqa: E402
from tests.engines.sglang.triton_oracle import beam  # noqa: E402

VOCABULARY = 50
TRIALS = 8


def random_tree(rng, nodes, source=Source.REQUEST):
    parents = [int(rng.integers(max(-1, node - 3), node)) for node in range(nodes)]
    return DraftTree(
        rng.permutation(VOCABULARY)[:nodes].astype(np.int32),
        np.array(parents, np.int32),
        rng.uniform(0.1, 1.0, nodes).astype(np.float32),
        np.full(nodes, source, np.uint8),
    )


def random_penalties(rng):
    if rng.random() < 0.4:
        return None
    rule = PenaltyRule(float(rng.choice([0.0, 0.5])), 0.3, float(rng.choice([1.0, 1.3])), 3, (7, 8))
    penalties = PathPenalties(rule, VOCABULARY, "cpu")
    penalties.catch_up(rng.integers(0, VOCABULARY, 5).tolist())
    return penalties


class Grammar:
    """Forbids some tokens at every node."""

    def __init__(self, shape):
        self._forbidden = torch.rand(shape) < 0.4
        self._forbidden[:, 0] = False

    def apply(self, logits):
        logits.masked_fill_(self._forbidden, -torch.inf)


def sampling_of(batch, greedy):
    return SamplingBatchInfo(
        temperatures=torch.full((batch, 1), 0.9),
        top_ps=torch.full((batch,), 0.9),
        top_ks=torch.full((batch,), 20),
        min_ps=torch.zeros(batch),
        is_all_greedy=greedy,
        is_any_greedy=greedy,
        need_top_p_sampling=True,
        need_top_k_sampling=True,
        need_min_p_sampling=False,
        vocab_size=VOCABULARY,
        sampling_seed=torch.arange(batch) + 5,
        logit_bias=torch.randn(batch, VOCABULARY) if random.random() < 0.5 else None,
    )


def sampler(output, info, _return, _top, _ids, positions):
    """Draws by seed and position, as SGLang's seeded sampler does, with noise of its own."""
    logits = output.next_token_logits / info.temperatures
    places = torch.arange(VOCABULARY)
    noise = torch.sin(places * 12.9898 + positions[:, None] * 78.233 + info.sampling_seed[:, None]) * 43758.5453
    return (logits + 3 * noise.frac().abs()).argmax(-1)


def compare_acceptance():
    """The same tokens and the same path, whatever is asked of the logits."""
    rng = np.random.default_rng(random.randrange(2**31))
    drafts = [random_tree(rng, int(rng.integers(0, 7))) for _ in range(int(rng.integers(1, 4)))]
    batch, width = len(drafts), max(map(len, drafts)) + int(rng.integers(1, 3))
    roots, lengths = rng.integers(0, VOCABULARY, batch), rng.integers(5, 90, batch)
    runner = SimpleNamespace(attn_backend=SimpleNamespace(verify_mask=None), sampler=sampler)
    penalties = [random_penalties(rng) for _ in drafts]
    truncated = rng.integers(0, 2, batch).astype(bool).tolist()
    greedy = random.random() < 0.5
    info = sampling_of(batch, greedy)
    logits = torch.randn(batch * width, VOCABULARY).round(decimals=1)  # with ties
    grammar = Grammar(logits.shape) if random.random() < 0.3 else None
    results = []
    for with_parents in (False, True):
        rows = host_rows(drafts, roots, lengths, width, "cpu", with_parents=with_parents)
        for b, tree in enumerate(drafts):  # so that paths are followed
            for node in range(len(tree)):
                if rng.random() < 0.8 and not with_parents:
                    logits[b * width + int(tree.parents[node]) + 1, int(tree.tokens[node])] = 6.0
        step = verify_input_of(
            rows,
            lengths,
            target_worker=SimpleNamespace(model_runner=runner),
            penalties=penalties,
            truncated=truncated,
        )
        scheduled = SimpleNamespace(forward_mode=SimpleNamespace(is_idle=lambda: False), sampling_info=info)
        output = SimpleNamespace(next_token_logits=logits.clone())
        acceptance.get_parallel = lambda: SimpleNamespace(tp_group=SimpleNamespace(world_size=1))
        results.append(acceptance.sample(None, step, scheduled, output, grammar))
    for name, host, device in zip(("tokens", "counts", "path"), *results, strict=True):
        assert host.dtype == device.dtype == torch.int32, name
        assert torch.equal(host, device), f"{name}:\n{host}\n{device}"
    return int(results[0][1].sum()) - batch


def compare_compaction():
    """Cache, tokens and hidden states as SGLang moves them."""
    rng = np.random.default_rng(random.randrange(2**31))
    batch, width, slots = 2, 5, 24
    path = torch.full((batch, width), -1, dtype=torch.int32)
    counts = torch.zeros(batch, dtype=torch.int32)
    for b in range(batch):
        rows = [0, *sorted(rng.permutation(np.arange(1, width))[: int(rng.integers(0, width))].tolist())]
        path[b, : len(rows)], counts[b] = torch.tensor(rows) + b * width, len(rows)
    where = torch.randperm(slots)[: batch * width]
    pool = SimpleNamespace(
        k_buffer=[torch.randn(slots, 2, 4) for _ in range(3)], v_buffer=[torch.randn(slots, 2, 4) for _ in range(3)]
    )
    expected = [one.clone() for one in (*pool.k_buffer, *pool.v_buffer)]
    for one in expected:
        source = one.clone()
        for b in range(batch):
            taken = path[b, : counts[b]].long()
            one[where[b * width : b * width + len(taken)]] = source[where[taken]]
    tokens, hidden = torch.randint(0, 99, (batch * width,), dtype=torch.int32), torch.randn(batch * width, 6)
    by_sglang = [_compact_accept_to_front(one, path, batch, num_draft_tokens=width) for one in (tokens, hidden)]
    result = SimpleNamespace(
        accept_index=path,
        accept_lens=counts,
        next_token_ids=tokens,
        logits_output=SimpleNamespace(hidden_states=hidden),
    )
    device_path.DeviceCompaction(pool)(SimpleNamespace(out_cache_loc=where), result)
    for one, right in zip((*pool.k_buffer, *pool.v_buffer), expected, strict=True):
        assert torch.equal(one, right)
    for one, right in zip((tokens, hidden), by_sglang, strict=True):
        for b in range(batch):  # behind the accepted ones SGLang leaves what nobody reads
            here = slice(b * width, b * width + int(counts[b]))
            assert torch.equal(one[here], right[here])


def compare_merging():
    """EAGLE-3's trees are those that the host reads, and the union holds the nodes most likely to be reached."""
    rng = np.random.default_rng(random.randrange(2**31))
    batch, topk, steps = random.randint(1, 3), random.choice([1, 2, 4]), random.randint(1, 3)
    nodes = steps + 1 if topk == 1 else random.randint(2, topk + (steps - 1) * topk**2 + 1)
    parents, chosen, drafted = beam(batch, topk, steps, nodes)
    lengths = torch.randint(3, 9, (batch,))
    mask, positions = torch.ones(batch * nodes**2, dtype=torch.bool), torch.zeros(batch * nodes, dtype=torch.int64)
    links = torch.full((3, batch, nodes), -1)
    trees.build_tree_kernel_efficient_cpu(
        parents.contiguous(), chosen.contiguous(), lengths, mask, positions, *links, topk, steps, nodes, 1
    )
    step = SimpleNamespace(
        draft_token=torch.cat([torch.zeros(batch, 1, dtype=torch.int64), drafted], 1),
        retrieve_next_token=links[1],
        retrieve_next_sibling=links[2],
    )
    scores = falling_scores(batch, nodes - 1, parents, chosen, topk)
    on_host = eagle_trees(step, batch, scores, 0.6)
    on_device = eagle_nodes(drafted, parents, chosen, branches=topk, scores=scores, chain=0.6)
    host = [random_tree(rng, int(rng.integers(0, 8))) for _ in range(batch)]
    roots = torch.randint(0, VOCABULARY, (batch,))
    width = random.choice([2, 6, 40])
    merged = device_path.merge(host, on_device, roots, lengths, width)
    sources = merged.sources()
    for b in range(batch):
        rows = union(host[b], on_host[b], width)
        count = len(rows) + 1
        found = merged.rows.tokens[b, :count].tolist()
        assert found == [int(roots[b]), *(token for token, _, _ in rows)], (found, rows)
        assert merged.rows.parents[b, 1:count].tolist() == [parent for _, parent, _ in rows]
        assert merged.rows.parents[b, count:].eq(device_path.NO_PARENT).all()
        assert [int(one) for one in sources[b]] == [source for _, _, source in rows]
        for row, (_, parent, _) in enumerate(rows, 1):
            ancestors = merged.rows.mask[b, parent].clone()
            ancestors[row] = True
            assert torch.equal(merged.rows.mask[b, row], ancestors)
            assert merged.rows.positions[b, row] == merged.rows.positions[b, parent] + 1
        assert merged.rows.positions[b, 0] == lengths[b]
    paths = np.array([[0, 1, -1]] * batch)
    if all(len(one) for one in sources):
        assert [one.tolist() for one in accepted_sources(sources, paths)] == [[int(one[0])] for one in sources]


def falling_scores(batch, nodes, parents, chosen, topk):
    """Path probabilities that fall from parent to child, all different; None of a chain."""
    if topk == 1:
        return None
    scores = torch.zeros(batch, nodes)
    for b in range(batch):
        for node in range(nodes):
            group = int(chosen[b, node]) // topk
            above = 1.0
            if group:
                above = float(scores[b, chosen[b].tolist().index(int(parents[b, group]))])
            scores[b, node] = above * random.uniform(0.2, 0.95)
    return scores


def union(host, eagle, width):
    """(token, parent row, source) of every row after the root, most likely first."""
    candidates = []
    for place, tree in enumerate((host, eagle)):
        reach = tree.path_probabilities()
        for node in range(len(tree)):
            candidates.append((-float(reach[node]), place, node))
    rows, known, placed = [], {}, {}
    for _, place, node in sorted(candidates):
        tree = (host, eagle)[place]
        parent = int(tree.parents[node])
        above = 0 if parent < 0 else placed.get((place, parent))
        if above is None:
            continue
        edge = (above, int(tree.tokens[node]))
        if edge not in known and len(rows) + 1 < width:
            rows.append((edge[1], above, int(tree.source[node])))
            known[edge] = len(rows)
        if edge in known:
            placed[place, node] = known[edge]
    return rows


def compare_use():
    """What keeps a batch's merger on the host, one by one."""
    use = device_use.DeviceUse("on", "cpu")
    assert use.accepts
    plain = SimpleNamespace(
        frequency_penalty=0.0, presence_penalty=0.0, repetition_penalty=1.0, min_new_tokens=0, stop_token_ids=None
    )
    request = SimpleNamespace(sampling_params=plain, tokenizer=None, eos_token_ids=None)
    budget = Budget(max_nodes=8, max_depth=3)

    def merges(budgets=(budget, budget), grammar=False, alone=True, **penalty):
        other = SimpleNamespace(**vars(request) | {"sampling_params": SimpleNamespace(**vars(plain) | penalty)})
        return use.merges(SimpleNamespace(reqs=[request, other], has_grammar=grammar), budgets, 3, alone=alone)

    assert merges()
    assert not merges(grammar=True)
    assert not merges(alone=False)
    assert not merges(budgets=(budget, Budget(max_nodes=0, max_depth=0)))
    assert not merges(budgets=(budget, Budget(max_nodes=8, max_depth=2)))
    for name, value in (("frequency_penalty", 0.1), ("presence_penalty", 0.1), ("repetition_penalty", 1.1)):
        assert not merges(**{name: value})
    off = device_use.DeviceUse("off", "cpu")
    assert not off.accepts
    assert off.compaction(None) is None
    assert not device_use.DeviceUse("auto", "cpu").accepts
    wrong, device_trial.walk = device_trial.walk, lambda *_: (torch.zeros(1),) * 3
    assert device_trial.trial("cpu") == "acceptance gave a wrong result"
    assert not device_use.DeviceUse("on", "cpu").accepts, "kernels that fail here are not used"
    device_trial.walk = wrong
    assert device_trial.trial("cpu") is None
    assert device_trial.trial("no such device").startswith("RuntimeError")


def compare_pools():
    """Only a plain pool is compacted by us."""
    pool = MHATokenToKVPool.__new__(MHATokenToKVPool)
    pool.k_buffer, pool.v_buffer = [torch.zeros(4, 2, 8)], [torch.zeros(4, 2, 8)]
    pool.use_hnd = pool.use_native_move_kv_cache = False
    assert device_path.can_compact(pool)
    pool.use_hnd = True
    assert not device_path.can_compact(pool)
    pool.use_hnd, pool.k_scale_buffer = False, [torch.zeros(4)]
    assert not device_path.can_compact(pool)
    pool.k_scale_buffer, pool.v_buffer = None, [torch.zeros(4, 2, 4)]
    assert not device_path.can_compact(pool)
    assert not device_path.can_compact(SimpleNamespace(k_buffer=pool.k_buffer, v_buffer=pool.k_buffer, use_hnd=False))


if __name__ == "__main__":
    random.seed(0)
    torch.manual_seed(0)
    followed = sum(compare_acceptance() for _ in range(3 * TRIALS))
    assert followed > TRIALS, f"only {followed} drafted tokens were accepted, so little was tried"
    for _ in range(TRIALS):
        compare_compaction()
        compare_merging()
    compare_use()
    compare_pools()
    print("all equal")
