"""The drafting core once more, slow and plain, to compare the native one with."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field, replace

import numpy as np

MAX_MATCH = 64
CONTEXT_DEPTH = 32


def match_length(text: list[int], position: int, context: list[int], most: int = MAX_MATCH) -> int:
    """Tokens before `position` that equal the end of `context`; a negative token equals nothing."""
    length = 0
    while (
        length < min(position, len(context), most)
        and text[position - 1 - length] == context[-1 - length]
        and text[position - 1 - length] >= 0
    ):
        length += 1
    return length


def find_in_text(text: list[int], context: list[int], limit: int, enough: int) -> list[tuple[int, int]]:
    """(position, match) in the order of `IndexedText::find`."""
    matches = {place: match_length(text, place, context) for place in range(1, len(text))}
    found: list[tuple[int, int]] = []
    for order, longer in ((4, MAX_MATCH + 1), (2, 4), (1, 2)):
        if len(context) < order or (order == 1 and len(found) >= enough):
            continue
        wanted = min(limit, enough) if order == 1 else limit
        for place in sorted(matches, reverse=True):
            if order <= matches[place] < longer and len(found) < wanted:
                found.append((place, matches[place]))
    return found


def find_in_segment(tokens: list[int], live: set[int], context: list[int], shortest: int) -> list[tuple[int, int]]:
    """(position, match) of every live place that shares `shortest` tokens, longest matches first."""
    documents = np.cumsum([0] + [token < 0 for token in tokens])
    found = []
    for place in range(1, len(tokens)):
        match = match_length(tokens, place, context)
        if match >= shortest and tokens[place] >= 0 and documents[place] in live:
            found.append((place, match))
    return sorted(found, key=lambda item: -min(item[1], CONTEXT_DEPTH))


@dataclass(frozen=True)
class Candidate:
    position: int
    match: int
    recency: int


@dataclass(order=True)
class Node:
    key: tuple[float, int]
    token: int = field(compare=False)
    parent: int = field(compare=False)
    path: tuple[int, ...] = field(compare=False)
    candidates: list[Candidate] = field(compare=False)
    probability: float = field(compare=False)
    path_probability: float = field(compare=False)


ROOT_LIMITS = (48, 12)
INNER_LIMITS = (12, 4)
FEW_CANDIDATES = 4
MAX_INNER_LOOKUPS = 12
MAX_PROPOSALS = 16
NEGLIGIBLE_SHARE = 0.003


def recency_bucket(newer: int) -> int:
    return next(bucket for bucket, end in enumerate((1, 2, 4, 16, math.inf)) if newer < end)


def match_bucket(match: int) -> int:
    ends = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
    return sum(match >= end for end in ends)


def value(depth: int) -> float:
    """Plain steps that an accepted node at `depth` saves."""
    return float(depth**-0.75)


def rank(path_probability: float, depth: int) -> float:
    """What a node saves for each node that is wasted on it."""
    return path_probability * value(depth) / max(1 - path_probability, 1e-4)


class NaiveTree:
    """The tree that the builder grows over one request text alone, for a ranker whose log-odds see the share only.

    Weights: `origin[match bucket]` for prompt and output alike, `none[match bucket]`; log-odds are
    `slope * max(log share, -8) + offset`.
    """

    def __init__(self, request: list[int], origin: np.ndarray, none: np.ndarray, slope: float, offset: float) -> None:
        self.request, self.origin, self.none, self.slope, self.offset = request, origin, none, slope, offset

    def find(self, context: list[int], limits: tuple[int, int]) -> list[Candidate]:
        found = find_in_text(self.request, context[-MAX_MATCH:], *limits)
        return [Candidate(place, match, recency_bucket(i)) for i, (place, match) in enumerate(found)]

    def pooled(self, candidates: list[Candidate]) -> list[tuple[int, float, list[Candidate]]]:
        """(token, probability, its candidates), heaviest first."""
        if not candidates:
            return []
        weight = {c: math.exp(self.origin[match_bucket(c.match)]) for c in candidates}
        none = math.exp(self.none[match_bucket(max(c.match for c in candidates))])
        whole = sum(weight.values()) + none
        pools: dict[int, list[Candidate]] = {}
        for candidate in candidates:
            pools.setdefault(self.request[candidate.position], []).append(candidate)
        ranked = sorted(pools.items(), key=lambda pool: -sum(weight[c] for c in pool[1]))[:MAX_PROPOSALS]
        shares = [(token, sum(weight[c] for c in pool) / whole, pool) for token, pool in ranked]
        shares = [item for i, item in enumerate(shares) if i == 0 or item[1] >= NEGLIGIBLE_SHARE]
        odds = [self.slope * max(math.log(share), -8) + self.offset for _, share, _ in shares]
        probabilities = [1 / (1 + math.exp(-value)) for value in odds]
        scale = max(sum(probabilities), 1)
        return [(token, p / scale, pool) for (token, _, pool), p in zip(shares, probabilities, strict=True)]

    def build(self, max_nodes: int, max_depth: int, min_path_prob: float) -> list[tuple[int, int, float]]:
        """(token, parent, probability) of each node, in the order in which they were chosen."""
        heap: list[Node] = []
        count = 0
        lookups = MAX_INNER_LOOKUPS

        def push(parent: int, path: tuple[int, ...], path_probability: float, candidates: list[Candidate]) -> None:
            nonlocal count
            if len(path) >= max_depth:
                return
            for token, probability, pool in self.pooled(candidates):
                if path_probability * probability >= min_path_prob:
                    reached = path_probability * probability
                    key = (-rank(reached, len(path) + 1), count)
                    heapq.heappush(heap, Node(key, token, parent, (*path, token), pool, probability, reached))
                    count += 1

        push(-1, (), 1.0, self.find(self.request, ROOT_LIMITS))
        chosen: list[Node] = []
        while heap and len(chosen) < max_nodes:
            node = heapq.heappop(heap)
            chosen.append(node)
            followed = [
                replace(c, position=c.position + 1, match=min(c.match + 1, MAX_MATCH))
                for c in node.candidates
                if c.position + 1 < len(self.request)
            ]
            if len(followed) < FEW_CANDIDATES and lookups > 0:
                lookups -= 1
                known = {c.position for c in followed}
                found = self.find([*self.request, *node.path], INNER_LIMITS)
                followed += [c for c in found if c.position not in known]
            push(len(chosen) - 1, node.path, node.path_probability, followed)
        return [(node.token, node.parent, node.probability) for node in chosen]
