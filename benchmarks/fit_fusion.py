"""How an EAGLE-3 head's word is weighed against the texts': learns agentspec/drafters/fusion.json, and shows its worth.

The embedded model writes answers about a repository; both drafters are asked at every step of them, and every token
that either names along the true text becomes an example. Take a repository that the head was not trained on:

    python -m benchmarks.fit_fusion --repository PATH --prompts 64 --out fusion.json
"""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from agentspec.drafters import _native
from agentspec.drafters.base import Budget, DraftRequest
from agentspec.drafters.fused_drafter import StreamMemory
from agentspec.drafters.tree import ROOT
from agentspec.drafters.tree_drafter import TreeDrafter
from agentspec.drafters.weights import FUSION_SHAPES, write_weights
from benchmarks.draft_simulation import arguments_of, opened, recorded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from agentspec.benchmarking.codec import FileCodec
    from agentspec.drafters.eagle3.drafter import Eagle3Drafter
    from agentspec.drafters.tree import DraftTree
    from agentspec.index.snapshot import Snapshot
    from benchmarks.draft_simulation import Answer

BUDGET = Budget(max_nodes=64, max_depth=8, min_path_prob=0.003)
FOLDS = 4
RIDGE = 0.05
NEWTON_STEPS = 30


class Example(NamedTuple):
    """A token that a drafter named.

    Attributes:
        answer: number of the text.
        by_texts: its probability; None: not named.
        by_other: likewise, by the head.
        missed: what the texts leave to others.
        rest: what the head leaves to others.
        hit: whether it came.
    """

    answer: int
    by_texts: float | None
    by_other: float | None
    missed: float
    rest: float
    hit: bool


def examples(
    number: int, answer: Answer, head: Eagle3Drafter, snapshot: Snapshot, codec: FileCodec
) -> Iterator[Example]:
    """Of one text, every step of which is as long as the better drafter makes it."""
    start, at = len(answer.prompt), 1
    prompt = np.array(answer.prompt, np.int32)
    request = DraftRequest(prompt, snapshot, edited_path=answer.task.edited_path, codec=codec)
    texts = TreeDrafter().begin(request)
    session, text = head.begin(), [*answer.prompt, *answer.tokens[:1]]
    streams = StreamMemory(text)
    streams.add(0, answer.streams[:start])
    texts.commit(np.array(answer.tokens[:1], np.int32))
    while at < len(answer.tokens):
        ahead = answer.tokens[at:]
        streams.take(session)
        known, drafted = texts.propose(BUDGET), session.draft()
        yield from _judged(number, known, drafted, ahead)
        emitted = ahead[: 1 + max(len(known.accepted_path(ahead)), len(drafted.accepted_path(ahead)))]
        before = start + at - 1
        streams.add(before, answer.streams[before : before + len(emitted)])
        texts.commit(np.array(emitted, np.int32))
        text += emitted
        at += len(emitted)


def _judged(number: int, known: DraftTree, drafted: DraftTree, ahead: list[int]) -> Iterator[Example]:
    """What both trees say along the true text, as far as the head looked."""
    place: int | None = ROOT
    other = ROOT
    for token in ahead:
        by_texts = {} if place is None else _children(known, place)
        by_other = _children(drafted, other)
        if not by_other:
            return
        missed, rest = (1 - sum(prob for prob, _ in named.values()) for named in (by_texts, by_other))
        for one in by_texts.keys() | by_other.keys():
            ours, others = (named[one][0] if one in named else None for named in (by_texts, by_other))
            yield Example(number, ours, others, missed, rest, one == token)
        if token not in by_other:
            return
        other = by_other[token][1]
        place = by_texts[token][1] if token in by_texts else None


def _children(tree: DraftTree, parent: int) -> dict[int, tuple[float, int]]:
    """Probability and number of every child, by token."""
    return {
        int(tree.tokens[node]): (float(tree.prob[node]), int(node)) for node in np.flatnonzero(tree.parents == parent)
    }


def inputs(found: list[Example]) -> NDArray[np.float64]:
    """`float64[N, 15]`: the terms of native/fusion.hpp, in the columns of their case."""
    rows = np.zeros((len(found), len(FUSION_SHAPES), _native.FUSION_TERMS))
    for row, one in zip(rows, found, strict=True):
        case = row[2 if one.by_texts is None else 1 if one.by_other is None else 0]
        case[0] = 1
        case[1] = 0 if one.by_texts is None else _log_odds(one.by_texts, _native.FUSION_LEAST)
        case[2] = 0 if one.by_other is None else _log_odds(one.by_other, _native.FUSION_LEAST)
        case[3:] = [_log_odds(share, _native.FUSION_LEAST_LEFT) for share in (one.missed, one.rest)]
    return rows.reshape(len(found), -1)


def _log_odds(prob: float, least: float) -> float:
    clipped = min(max(prob, least), 1 - least)
    return float(np.log(clipped / (1 - clipped)))


def fitted(terms: NDArray[np.float64], hits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Logistic regression by Newton's method, with a ridge."""
    weights = np.zeros(terms.shape[1])
    for _ in range(NEWTON_STEPS):
        prob = 1 / (1 + np.exp(-terms @ weights))
        curvature = (terms * (prob * (1 - prob))[:, None]).T @ terms + RIDGE * np.eye(len(weights))
        weights += np.linalg.solve(curvature, terms.T @ (hits - prob) - RIDGE * weights)
    return weights


def log_loss(prob: NDArray[np.float64], hits: NDArray[np.float64]) -> float:
    """In nats, of all examples."""
    clipped = np.clip(prob, 1e-4, 1 - 1e-4)
    return float(-(hits * np.log(clipped) + (1 - hits) * np.log(1 - clipped)).sum())


def main() -> int:
    """Run."""
    assert __doc__ is not None
    parser = arguments_of(__doc__)
    parser.add_argument("--out", type=Path, help="file to write")
    arguments = parser.parse_args()
    _, target, (snapshot, codec, tasks) = opened(arguments)
    assert target.head is not None
    answers = zip(count(), recorded(target, codec, tasks))
    found = [one for number, answer in answers for one in examples(number, answer, target.head, snapshot, codec)]
    terms, hits = inputs(found), np.array([float(one.hit) for one in found])
    fold = np.array([one.answer % FOLDS for one in found])
    fused = np.zeros(len(found))
    for left_out in range(FOLDS):
        of_fold = fold == left_out
        fused[of_fold] = 1 / (1 + np.exp(-terms[of_fold] @ fitted(terms[~of_fold], hits[~of_fold])))
    by_texts = np.array([one.by_texts or 0.0 for one in found])
    by_other = np.array([one.by_other or 0.0 for one in found])
    print(f"{len(found)} tokens named in {found[-1].answer + 1} answers, {int(hits.sum())} of which came\n")
    print("| probability | log loss |\n| --- | --- |")
    for name, prob in {
        "of the texts": by_texts,
        "of the head": by_other,
        "the surer of the two": np.maximum(by_texts, by_other),
        "both weighed, answers left out": fused,
    }.items():
        print(f"| {name} | {log_loss(prob, hits):.0f} |")
    if arguments.out:
        weights = fitted(terms, hits).reshape(len(FUSION_SHAPES), -1).astype(np.float32)
        write_weights(dict(zip(FUSION_SHAPES, weights, strict=True)), arguments.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
