"""transformers' prompt lookup behind the drafter contract."""

import numpy as np

from agentspec.benchmarking.prompt_lookup import DRAFTED_TOKENS, PromptLookupDrafter
from agentspec.drafters.base import Budget, DraftRequest
from agentspec.drafters.tree import Source


def int32(*tokens: int):
    return np.array(tokens, np.int32)


def test_what_followed_the_last_tokens_before_is_drafted():
    session = PromptLookupDrafter().begin(DraftRequest(prompt=int32(*range(1, 30), 2, 3)))
    tree = session.propose(Budget())
    assert tree.tokens.tolist() == list(range(4, 4 + DRAFTED_TOKENS))
    assert tree.parents.tolist() == list(range(-1, DRAFTED_TOKENS - 1))
    session.commit(int32(4, 5, 90))
    assert session.receipt().drafted == {Source.REQUEST: DRAFTED_TOKENS}
    assert session.receipt().accepted == {Source.REQUEST: 2}
    assert len(session.propose(Budget())) == 0
    session.commit(int32(2))
    session.commit(int32(3))
    assert session.propose(Budget(max_nodes=3)).tokens.tolist() == [4, 5, 6]
