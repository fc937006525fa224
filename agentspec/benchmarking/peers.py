"""Other projects' model-free drafters through their own code, where it is installed.

`transformers` is always there. Arctic Inference's suffix decoding (`arctic_inference`) and SGLang's n-gram drafter
(`sglang`) are compared with when they can be imported. Both get the repository in the only way they take text: as
earlier responses, or as an external corpus. SGLang's looks up and learns the last tokens only, as its worker does.
"""

from __future__ import annotations

import importlib.util
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from agentspec.drafters.base import Budget, Drafter, DraftReceipt, DraftRequest, DraftSession
from agentspec.drafters.tree import ROOT, DraftTree, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from agentspec.index.snapshot import Snapshot

MAX_NGRAM = 3
"""Longest n-gram that prompt lookup matches, as the method was published."""
ARCTIC_DEPTH = 64
ARCTIC_FACTOR = 4.0
"""Most drafted tokens per matched one: the package's trade of drafted nodes for accepted tokens."""
SGLANG_DEPTH = 18
SGLANG_BREADTH = (1, 10)
"""Defaults of SGLang's server."""
_CAPACITY = 1_000_000


class ArcticSuffixDecoding(Drafter):
    """`SuffixDecodingCache` of Arctic Inference, trees; the repository stands in it as earlier responses."""

    def __init__(self) -> None:
        self._numbers = count()
        self._indexed: tuple[Snapshot | None, Any] | None = None

    def begin(self, request: DraftRequest) -> DraftSession:
        """Start on one request; the first one of a repository reads all of it."""
        if self._indexed is None or self._indexed[0] is not request.repository:
            self._indexed = (request.repository, self._index(request.repository))
        return _ArcticSession(self._indexed[1], next(self._numbers), request.prompt)

    def _index(self, snapshot: Snapshot | None) -> Any:
        from arctic_inference.suffix_decoding import (  # type: ignore[import-not-found]  # noqa: PLC0415
            SuffixDecodingCache,
        )

        cache = SuffixDecodingCache(max_tree_depth=ARCTIC_DEPTH)
        for tokens in _documents(snapshot):
            name = f"document {next(self._numbers)}"
            cache.start_request(name, tokens[:1])
            cache.add_active_response(name, tokens)
            cache.stop_request(name)
        return cache


class SGLangNgram(Drafter):
    """`NgramCorpus` of SGLang at its server defaults; half of the nodes are for the repository."""

    def __init__(self) -> None:
        self._corpora: dict[int, tuple[Snapshot | None, Any]] = {}
        self._numbers = count()

    def begin(self, request: DraftRequest) -> DraftSession:
        """Start on one request."""
        return _SGLangSession(
            lambda nodes: self._corpus(request.repository, nodes), next(self._numbers), request.prompt
        )

    def _corpus(self, snapshot: Snapshot | None, nodes: int) -> Any:
        from sglang.srt.speculative.cpp_ngram.external_corpus import SEPARATOR_TOKEN  # noqa: PLC0415
        from sglang.srt.speculative.cpp_ngram.ngram_corpus import NgramCorpus  # noqa: PLC0415

        known = self._corpora.get(nodes)
        if known is None or known[0] is not snapshot:
            corpus = NgramCorpus(
                max_trie_depth=SGLANG_DEPTH,
                min_bfs_breadth=SGLANG_BREADTH[0],
                max_bfs_breadth=SGLANG_BREADTH[1],
                draft_token_num=nodes + 1,  # the root counts
                match_type="BFS",
                capacity=_CAPACITY,
                external_sam_budget=nodes // 2,
            )
            chunks = [[*tokens.tolist(), SEPARATOR_TOKEN] for tokens in _documents(snapshot)]
            corpus.commit_external_corpus_load("repository", corpus.load_external_corpus_named("repository", chunks))
            known = self._corpora[nodes] = (snapshot, corpus)
        known[1].reset()  # forgets what earlier requests said, not the external corpus
        return known[1]


class _PeerSession(DraftSession):
    """Counts for the receipt; what is drafted is the subclasses' matter."""

    def __init__(self) -> None:
        self._receipt = DraftReceipt()

    def propose(self, budget: Budget) -> DraftTree:
        tree = self._draft(min(budget.max_nodes, budget.max_depth))
        drafted = self._receipt.drafted
        drafted[Source.REQUEST] = drafted.get(Source.REQUEST, 0) + len(tree)
        return tree

    def commit(self, tokens: NDArray[np.int32]) -> None:
        self._receipt.steps += 1
        accepted = self._receipt.accepted
        accepted[Source.REQUEST] = accepted.get(Source.REQUEST, 0) + len(tokens) - 1
        self._append(tokens)

    def receipt(self) -> DraftReceipt:
        return self._receipt

    def _draft(self, nodes: int) -> DraftTree:
        raise NotImplementedError

    def _append(self, tokens: NDArray[np.int32]) -> None:
        raise NotImplementedError


class _ArcticSession(_PeerSession):
    def __init__(self, cache: Any, number: int, prompt: NDArray[np.int32]) -> None:
        super().__init__()
        self._cache = cache
        self._name = f"request {number}"
        self._tail = np.ascontiguousarray(prompt[-ARCTIC_DEPTH:])
        cache.start_request(self._name, np.ascontiguousarray(prompt))

    def __del__(self) -> None:
        self._cache.stop_request(self._name)
        self._cache.evict_cached_response(self._name)  # nothing is carried from one request to the next

    def _draft(self, nodes: int) -> DraftTree:
        found = self._cache.speculate(
            self._name, self._tail, max_spec_tokens=nodes, max_spec_factor=ARCTIC_FACTOR, use_tree_spec=True
        )
        return DraftTree(
            tokens=np.array(found.token_ids, np.int32),
            parents=np.array(found.parents, np.int32),
            prob=np.array(found.probs, np.float32),
            source=np.full(len(found.token_ids), Source.REQUEST, np.uint8),
        )

    def _append(self, tokens: NDArray[np.int32]) -> None:
        self._cache.add_active_response(self._name, tokens)
        self._tail = np.concatenate([self._tail, tokens])[-ARCTIC_DEPTH:]


class _SGLangSession(_PeerSession):
    def __init__(self, corpus_for: Callable[[int], Any], number: int, prompt: NDArray[np.int32]) -> None:
        super().__init__()
        self._corpus_for = corpus_for
        self._corpus: Any = None
        self._name = str(number)
        self._tail = prompt[-SGLANG_DEPTH:].tolist()
        self._length = len(prompt)

    def _draft(self, nodes: int) -> DraftTree:
        if self._corpus is None:
            self._corpus = self._corpus_for(nodes)
        self._corpus.synchronize()
        tokens, mask = self._corpus.batch_get([self._name], [self._tail], [self._length])
        ancestors = np.tril(np.asarray(mask).reshape(nodes + 1, nodes + 1), -1) != 0
        nearest = np.where(ancestors.any(1), nodes - ancestors[:, ::-1].argmax(1), 0)[1:]
        # Missing nodes come as token 0 below the root, over and over; its worker verifies all of them.
        parents = (nearest - 1).astype(np.int32)
        return _without_repeats(np.asarray(tokens, np.int32)[1:], parents)

    def _append(self, tokens: NDArray[np.int32]) -> None:
        if self._corpus is not None:
            self._corpus.batch_put([self._tail])
        self._tail = [*self._tail, *tokens.tolist()][-SGLANG_DEPTH:]
        self._length += len(tokens)


def _without_repeats(tokens: NDArray[np.int32], parents: NDArray[np.int32]) -> DraftTree:
    """The tree without nodes that repeat a sibling: they bring nothing."""
    place: dict[tuple[int, int], int] = {}
    number = [ROOT]
    for token, parent in zip(tokens.tolist(), parents.tolist(), strict=True):
        edge = (number[parent + 1], token)
        number.append(place.setdefault(edge, len(place)))
    edges = list(place)
    return DraftTree(
        tokens=np.array([token for _, token in edges], np.int32),
        parents=np.array([parent for parent, _ in edges], np.int32),
        prob=np.ones(len(edges), np.float32),
        source=np.full(len(edges), Source.REQUEST, np.uint8),
    )


def _documents(snapshot: Snapshot | None) -> Iterator[NDArray[np.int32]]:
    if snapshot is not None:
        yield from (tokens for document in snapshot.documents() if len(tokens := snapshot.tokens(document)))


def _prompt_lookup() -> Drafter:
    import torch  # noqa: PLC0415

    from agentspec.benchmarking.prompt_lookup import PromptLookupDrafter  # noqa: PLC0415 - loads torch

    # Drafters are compared on one core; on small tensors, threads that wait for each other take many times as long.
    torch.set_num_threads(1)
    return PromptLookupDrafter(drafted_tokens=None, max_ngram=MAX_NGRAM)


PEERS: dict[str, tuple[str, Callable[[], Drafter]]] = {
    "prompt-lookup": ("transformers", _prompt_lookup),
    "arctic": ("arctic_inference", ArcticSuffixDecoding),
    "sglang-ngram": ("sglang", SGLangNgram),
}
"""By the name that `agentspec bench replay` gives them: the package that must be installed, and what makes one."""


def installed_peers() -> list[str]:
    """Names of the peers that can be compared with here."""
    return [name for name, (package, _) in PEERS.items() if importlib.util.find_spec(package) is not None]
