"""Fit the ranker's weights on recorded edits: the file `agentspec/drafters/weights.json` is this script's output.

Needs the replay harness on PYTHONPATH (its `traces.py` reads the streams) and this folder:

    PYTHONPATH=HARNESS:benchmarks python benchmarks/fit_weights.py --traces TRACES.npz ... --index SCRATCH --out FOLDER

writes `all.json` (fitted on every stream; what is shipped), `without-K.json` (fitted without fold K; for reported
figures) and `folds.json`, which says the fold of each edit: all edits of a repository are in one. Two stages, each over
everything that the ranker saw while it replayed the streams: first the candidates' log-linear weights against "none of
these" by the likelihood of the true token, then the network over pooled tokens by the log-loss of "this token comes
next". The second stage sees the first one's sums.
Features hold no token ids, so the weights serve any tokenizer.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from replay_adapter import FOLDS, FOLDS_FILE, build_index, codec  # type: ignore[import-not-found]
from torch import Tensor, nn
from traces import Traces  # type: ignore[import-not-found]

from agentspec.drafters import _native
from agentspec.drafters.base import Budget, DraftRequest
from agentspec.drafters.tree_drafter import TreeDrafter, TreeSession
from agentspec.drafters.weights import SHAPES, Weights, write_weights
from agentspec.index.store import IndexStore

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from agentspec.index.snapshot import Snapshot

SEED = 20
REPLAY_BUDGET = Budget(max_nodes=96, max_depth=256, min_path_prob=0.05)
OBSERVED_DEPTH = 256
"""Nodes along the true continuation that are noted at each step."""
EASY = 0.97
"""Nodes whose first proposal is this likely and right are thinned out..."""
EASY_KEPT = 0.1
"""...to this share, and weigh accordingly more."""
CANDIDATE_NODES = 60_000
"""Nodes that the first stage is fitted on..."""
CANDIDATE_DEPTH = 12
"""...all of them at most this far into the continuation: deeper ones are nearly all alike."""


class Stream(NamedTuple):
    """A recorded edit in one of the harness's token caches."""

    traces: Any
    number: int

    @property
    def meta(self) -> dict[str, Any]:
        """What the cache says of it: id, repository, path, kind."""
        return self.traces.meta[self.number]  # type: ignore[no-any-return]


@dataclass
class Rows:
    """What the ranker saw at nodes on the true path.

    Attributes:
        candidate_node: `int32[C]`, the node of each candidate, ascending.
        candidates: `uint8[C, 5]`: origin, match bucket, relation, recency, whether it was right.
        longest: `uint8[N]`, bucket of the longest match at each node.
        features: `float32[T, F]`, one row per pooled token.
        hits: `uint8[T]`, whether it came next.
        weight: `float32[T]`, of each row in the second stage.
    """

    candidate_node: NDArray[np.int32]
    candidates: NDArray[np.uint8]
    longest: NDArray[np.uint8]
    features: NDArray[np.float32]
    hits: NDArray[np.uint8]
    weight: NDArray[np.float32]


def neutral_weights() -> Weights:
    """Weights before any fitting: a longer match weighs more, and a token's probability is about its share."""
    weights = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    length = np.minimum([0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32], 12).astype(np.float32)
    weights["origin_match"][:] = 0.6 * length
    weights["none"][:] = 1 + 0.3 * length
    weights["hidden"][_native.NODE_FEATURES, 0] = 1  # log share / 4
    weights["hidden_bias"][0] = 2
    weights["output"][0] = 6
    weights["output_bias"][:] = -10
    return weights


def assign_folds(edits: list[dict[str, Any]]) -> dict[str, int]:
    """The fold of each edit, by its id: repositories stay whole, and every kind of edit is on both sides if it can.

    Args:
        edits: one entry a stream, with its `id`, `repo` and `kind`.
    """
    kind_of = {edit["repo"]: edit["kind"] for edit in edits}
    streams = Counter(edit["repo"] for edit in edits)
    size: Counter[tuple[str, int]] = Counter()
    fold_of = {}
    for repository in sorted(streams, key=lambda name: (-streams[name], name)):
        kind = kind_of[repository]
        fold_of[repository] = min(range(FOLDS), key=lambda fold: size[kind, fold])
        size[kind, fold_of[repository]] += streams[repository]
    return {edit["id"]: fold_of[edit["repo"]] for edit in edits}


def snapshot_of(traces: Any, number: int, folder: Path) -> Snapshot:
    """The index of a stream's repository, built on first use."""
    store = folder / traces.meta[number]["id"]
    if not (store / "manifest.json").exists():
        return build_index(store, traces.repo_docs(number))  # type: ignore[no-any-return]
    return IndexStore(store).current()


def accepted(session_tree: Any, rest: NDArray[np.int32]) -> int:
    """How many leading tokens of `rest` a tree holds."""
    path, depth = -1, 0
    for node, (token, parent) in enumerate(
        zip(session_tree.tokens.tolist(), session_tree.parents.tolist(), strict=True)
    ):
        if depth < len(rest) and parent == path and token == rest[depth]:
            path, depth = node, depth + 1
    return depth


def observe_stream(session: TreeSession, output: NDArray[np.int32]) -> list[dict[str, NDArray[Any]]]:
    """Replay one stream; what the ranker saw at every step."""
    seen, at = [], 0
    while at < len(output):
        seen.append(session.observe(output[at:], OBSERVED_DEPTH))
        taken = accepted(session.propose(REPLAY_BUDGET), output[at:]) + 1
        session.commit(output[at : at + taken])
        at += taken
    return seen


def thinned(seen: list[dict[str, NDArray[Any]]], draw: np.random.Generator) -> Rows:
    """Join the observations of one stream, without most of the easy nodes' token rows."""
    first_node = np.cumsum([0] + [len(step["longest"]) for step in seen])
    node = np.concatenate([step["candidate_node"] + first for step, first in zip(seen, first_node[:-1], strict=True)])
    features = np.concatenate([step["features"].reshape(-1, _native.FEATURES) for step in seen])
    hits = np.concatenate([step["hits"] for step in seen])
    easy = (np.exp(4 * features[:, _native.NODE_FEATURES]) > EASY) & (hits == 1)
    kept = ~easy | (draw.random(len(hits)) < EASY_KEPT)
    weight = np.where(easy, 1 / EASY_KEPT, 1.0).astype(np.float32)
    candidates = np.concatenate([step["candidates"].reshape(-1, 5) for step in seen])
    longest = np.concatenate([step["longest"] for step in seen])
    near = np.concatenate([np.arange(len(step["longest"])) < CANDIDATE_DEPTH for step in seen])
    number = np.cumsum(near) - 1
    node, candidates = number[node[near[node]]], candidates[near[node]]
    longest = longest[near]
    return Rows(node.astype(np.int32), candidates, longest, features[kept], hits[kept], weight[kept])


def observe_all(streams: list[Stream], folder: Path, weights: Weights) -> list[Rows]:
    """What the ranker sees on some streams, a stream after the other.

    Args:
        streams: which ones.
        folder: of their indexes.
        weights: what the ranker holds meanwhile.
    """
    drafter, draw, rows = TreeDrafter(_native.Ranker(weights)), np.random.default_rng(SEED), []
    for stream in streams:
        traces, number = stream
        snapshot = snapshot_of(traces, number, folder)
        request = DraftRequest(traces.prompts[number], snapshot, stream.meta["path"], codec=codec())
        rows.append(thinned(observe_stream(drafter.begin(request), traces.outputs[number]), draw))
    return rows


def fit_candidates(rows: list[Rows], start: Weights) -> Weights:
    """First stage: maximise the likelihood of the true token, or of "none" where no candidate holds it."""
    draw = np.random.default_rng(SEED)
    total = sum(len(stream.longest) for stream in rows)
    share = min(1.0, CANDIDATE_NODES / total)
    nodes, values, longest, count = [], [], [], 0
    for stream in rows:
        kept = draw.random(len(stream.longest)) < share
        new = np.cumsum(kept) - 1 + count
        of_kept = kept[stream.candidate_node]
        nodes.append(new[stream.candidate_node[of_kept]])
        values.append(stream.candidates[of_kept])
        longest.append(stream.longest[kept])
        count += int(kept.sum())
    node = torch.from_numpy(np.concatenate(nodes))
    value = torch.from_numpy(np.concatenate(values)).long()
    bucket = torch.from_numpy(np.concatenate(longest)).long()
    hit = value[:, 4] == 1
    names = ("origin_match", "relation_match", "recency", "none")
    tables = {name: nn.Parameter(torch.tensor(start[name])) for name in names}
    optimiser = torch.optim.Adam(tables.values(), lr=0.05)
    for _ in range(150):
        score = (
            tables["origin_match"][value[:, 0], value[:, 1]]
            + tables["relation_match"][value[:, 2], value[:, 1]]
            + tables["recency"][value[:, 0], value[:, 3]]
        ).exp()
        none = tables["none"][bucket].exp()
        sums = torch.zeros(count).index_add(0, node, score)
        right = torch.zeros(count).index_add(0, node[hit], score[hit])
        right = torch.where(right > 0, right, none)
        loss = -(right / (sums + none)).log().mean()
        penalty = sum(((table - torch.tensor(start[name])) ** 2).sum() for name, table in tables.items())
        optimiser.zero_grad()
        (loss + 1e-5 * penalty).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    print(f"  candidates: {count} nodes, {len(node)} candidates, log-loss {loss.item():.4f}", flush=True)
    return {**start, **{name: table.detach().numpy() for name, table in tables.items()}}


def fit_network(rows: list[Rows], start: Weights, epochs: int) -> Weights:
    """Second stage: a network with one hidden layer, from the pooled features to log-odds."""
    torch.manual_seed(SEED)
    features = torch.from_numpy(np.concatenate([stream.features for stream in rows]))
    hits = torch.from_numpy(np.concatenate([stream.hits for stream in rows])).float()
    weight = torch.from_numpy(np.concatenate([stream.weight for stream in rows]))
    mean, spread = features.mean(0), features.std(0).clamp(min=0.05)
    features = (features - mean) / spread
    network = nn.Sequential(nn.Linear(_native.FEATURES, _native.HIDDEN), nn.ReLU(), nn.Linear(_native.HIDDEN, 1))
    batch, steps = 4096, epochs * (len(hits) // 4096 + 1)
    optimiser = torch.optim.AdamW(network.parameters(), lr=8e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 8e-3, total_steps=steps)
    total, seen = 0.0, 0
    for step in range(steps):
        pick = torch.randint(0, len(hits), (batch,))
        loss = (
            nn.functional.binary_cross_entropy_with_logits(
                network(features[pick]).squeeze(1), hits[pick], reduction="none"
            )
            * weight[pick]
        ).sum() / weight[pick].sum()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
        if step > steps * 0.9:
            total, seen = total + loss.item(), seen + 1
    print(f"  network: {len(hits)} rows, log-loss {total / max(seen, 1):.4f}", flush=True)
    inner, outer = network[0], network[2]
    assert isinstance(inner, nn.Linear)
    assert isinstance(outer, nn.Linear)
    hidden: Tensor = inner.weight.detach() / spread
    fitted = {
        "hidden": hidden.T,
        "hidden_bias": inner.bias.detach() - hidden @ mean,
        "output": outer.weight.detach()[0],
        "output_bias": outer.bias.detach(),
    }
    return {
        **start,
        **{name: np.ascontiguousarray(value.numpy()).reshape(SHAPES[name]) for name, value in fitted.items()},
    }


def main() -> None:
    """Fit the whole and without each fold, and write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, nargs="+", required=True, help="token caches of the harness, .npz")
    parser.add_argument("--index", type=Path, required=True, help="folder for the streams' indexes, kept for next time")
    parser.add_argument("--out", type=Path, required=True, help="folder for the fitted weights")
    parser.add_argument("--epochs", type=int, default=30, help="of the network")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    caches = [Traces(str(file)) for file in arguments.traces]
    streams = [Stream(cache, number) for cache in caches for number in cache.select()]
    fold_of = assign_folds([stream.meta for stream in streams])
    (arguments.out / FOLDS_FILE).write_text(json.dumps(fold_of, indent=1) + "\n")
    neutral = neutral_weights()
    seen = observe_all(streams, arguments.index, neutral)
    for left_out in (None, *range(FOLDS)):
        fitted_on = [fold_of[stream.meta["id"]] != left_out for stream in streams]
        tables = fit_candidates(list(compress(seen, fitted_on)), neutral)
        # The features hold sums of the first stage's weights, so the second stage sees the streams anew.
        again = observe_all(list(compress(streams, fitted_on)), arguments.index, tables)
        weights = fit_network(again, tables, arguments.epochs)
        name = "all" if left_out is None else f"without-{left_out}"
        write_weights(weights, arguments.out / f"{name}.json")


if __name__ == "__main__":
    main()
