"""Other projects' drafters, as far as they are installed here."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.benchmarking.comparison import contenders
from agentspec.benchmarking.peers import PEERS, ArcticSuffixDecoding, installed_peers
from agentspec.benchmarking.replay import replay
from agentspec.benchmarking.repository import indexed
from agentspec.benchmarking.traces import Document
from agentspec.drafters.base import Budget, DraftRequest
from agentspec.errors import InvalidRequestError

if TYPE_CHECKING:
    from numpy.typing import NDArray


def ints(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def naive_lookup(context: list[int], count: int) -> list[int]:
    """What followed the earliest occurrence of the last three, else two, else one token."""
    for length in (3, 2, 1):
        needle = context[-length:]
        for end in range(length, len(context)):
            if len(needle) == length and context[end - length : end] == needle:
                return context[end : end + count]
    return []


@settings(deadline=None, max_examples=50)
@given(context=st.lists(st.integers(0, 2), min_size=2, max_size=25), split=st.integers(1, 25), count=st.integers(1, 6))
def test_prompt_lookup_follows_the_published_rule(context: list[int], split: int, count: int) -> None:
    session = PEERS["prompt-lookup"][1]().begin(DraftRequest(ints(*context[:split])))
    for token in context[split:]:
        session.commit(ints(token))
    assert session.propose(Budget(max_nodes=count)).tokens.tolist() == naive_lookup(context, count)


def test_a_peer_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PEERS, "elsewhere", ("no_such_package", ArcticSuffixDecoding))
    assert "elsewhere" not in installed_peers()
    with pytest.raises(InvalidRequestError, match="'elsewhere' needs the package no_such_package"):
        contenders(["elsewhere"])


@pytest.mark.parametrize("name", sorted(PEERS))
def test_a_peer_keeps_the_contract_and_forgets_what_earlier_requests_said(name: str) -> None:
    if name not in installed_peers():
        pytest.skip(f"{PEERS[name][0]} is not installed")
    drafter = PEERS[name][1]()
    document = np.arange(100, 160, dtype=np.int32)
    with indexed([Document("a.py", document)], vocabulary_size=1000) as snapshot:
        request = DraftRequest(ints(1, 2, 3, 4, 5, 6), snapshot)
        output = np.concatenate([document[10:50], np.arange(500, 520, dtype=np.int32)])
        first = replay(drafter, request, output, Budget(max_nodes=8, max_depth=8))
        again = replay(drafter, request, output, Budget(max_nodes=8, max_depth=8))
    assert (first.steps, first.drafted) == (again.steps, again.drafted)
    assert (first.steps < len(output) - 15) == (name != "prompt-lookup"), "who is given the repository drafts from it"


def test_arctic_is_given_every_document_once_for_each_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, list[int]]] = []

    class Cache:
        def __init__(self, max_tree_depth: int) -> None:
            assert max_tree_depth == 64

        def start_request(self, name: str, prompt: NDArray[np.int32]) -> None: ...
        def stop_request(self, name: str) -> None: ...
        def evict_cached_response(self, name: str) -> None: ...
        def add_active_response(self, name: str, tokens: NDArray[np.int32]) -> None:
            said.append((name.split(maxsplit=1)[0], tokens.tolist()))

        def speculate(self, *_: object, **settings: object) -> SimpleNamespace:
            assert settings["max_spec_tokens"] == 3
            return SimpleNamespace(token_ids=[7, 8], parents=[-1, 0], probs=[0.9, 0.5])

    module = ModuleType("arctic_inference.suffix_decoding")
    module.SuffixDecodingCache = Cache  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "arctic_inference", ModuleType("arctic_inference"))
    monkeypatch.setitem(sys.modules, "arctic_inference.suffix_decoding", module)
    drafter = ArcticSuffixDecoding()
    with indexed([Document("a.py", ints(1, 2)), Document("b.py", ints(3))], vocabulary_size=10) as snapshot:
        for _ in range(2):
            result = replay(drafter, DraftRequest(ints(9), snapshot), ints(7, 8, 5, 7), Budget(max_nodes=3))
            assert (result.steps, result.drafted) == (2, 4)
    documents = [tokens for kind, tokens in said if kind == "document"]
    assert documents == [[1, 2], [3]]
    assert [tokens for kind, tokens in said if kind == "request"] == [[7, 8, 5], [7]] * 2
