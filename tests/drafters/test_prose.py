from __future__ import annotations

import numpy as np

from agentspec.drafters import _native
from agentspec.drafters.base import Budget, DraftRequest
from agentspec.drafters.prose import HEAD_TOKENS, ProseTokens, prose
from agentspec.drafters.tree_drafter import TreeDrafter, TreeSession
from agentspec.drafters.weights import SHAPES

REFUTED = _native.NODE_FEATURES + 14
CORRECTED = REFUTED + 1


class CharacterCodec:
    def __init__(self) -> None:
        self.encoded = 0

    def encode(self, text: str) -> list[int]:
        self.encoded += 1
        return [ord(character) for character in text]

    def decode(self, tokens: list[int]) -> str:
        return "".join(map(chr, tokens))


def session_with(feature: int, weight: float) -> TreeSession:
    """A session whose log-odds are 5, plus `weight` times one feature."""
    weights = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    weights["hidden"][feature, 0] = weight
    weights["hidden_bias"][0] = 5
    weights["output"][0] = 1
    prompt = np.array([1, 2, 3, 4, 1, 2], np.int32)
    return TreeDrafter(_native.Ranker(weights)).begin(DraftRequest(prompt))


def first_probability(session: TreeSession, token: int) -> float:
    tree = session.propose(Budget(max_nodes=8, max_depth=1, min_path_prob=0.0001))
    return float(tree.prob[tree.tokens.tolist().index(token)])


def test_prose_is_what_is_outside_of_fences_and_numbered_views() -> None:
    head = "Rename load.\n```python\ndef save():\n```\nPlease.\n    7\treturn kept\n"
    text = prose(head)
    assert "Rename load." in text
    assert "Please." in text
    assert "save" not in text
    assert "kept" not in text


def test_a_fence_that_opens_at_the_end_is_told_from_one_that_closes_there() -> None:
    assert "start" in prose("", "start\nsrc/a.py\n```\n")
    assert "shown" not in prose("", "shown\n```\n\n")
    assert "Do it" in prose("", "shown\n```\nDo it\n")


def test_words_of_both_ends_are_found_and_spelt_once() -> None:
    codec = CharacterCodec()
    finder = ProseTokens(codec)
    text = "Fix qux" + "\n```\n" + "z" * HEAD_TOKENS + "\n```\nwith jig"
    tokens = set(finder.of(np.array(codec.encode(text), np.int32)).tolist())
    assert {ord(c) for c in "quxjig "} <= tokens
    assert ord("z") not in tokens
    before = codec.encoded
    finder.of(np.array([ord(c) for c in "Fix qux"], np.int32))
    assert codec.encoded == before


def test_a_token_that_was_drafted_in_vain_is_believed_less_until_it_is_right() -> None:
    session = session_with(REFUTED, -3.0)
    before = first_probability(session, 3)
    session.commit(np.array([7, 1, 2], np.int32))
    refuted = first_probability(session, 3)
    assert refuted < before - 0.01
    session.commit(np.array([3, 4, 1, 2], np.int32))
    assert refuted < first_probability(session, 3) < before


def test_a_token_that_came_instead_of_a_draft_is_believed_more() -> None:
    session = session_with(CORRECTED, -3.0)
    first_probability(session, 3)
    session.commit(np.array([7, 1, 2], np.int32))
    assert first_probability(session, 7) < first_probability(session, 3)
