"""The head beside the model-free tree."""

from dataclasses import replace

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.drafters.base import Budget, DraftRequest
from agentspec.drafters.eagle3.drafter import Eagle3Drafter
from agentspec.drafters.eagle3.session import Growth
from agentspec.drafters.fused_drafter import FusedDrafter, StreamMemory
from agentspec.drafters.tree import DraftTree, Source
from agentspec.drafters.tree_drafter import TreeDrafter
from tests.drafters.tiny_heads import HIDDEN, VOCAB, tiny_embedding, tiny_head

BUDGET = Budget(max_nodes=32, max_depth=8, min_path_prob=0.02)


def drafter(**options) -> FusedDrafter:
    head = Eagle3Drafter(tiny_head(), tiny_embedding(), layers=8, growth=Growth(level_gain=0.0, min_path_prob=0.001))
    return FusedDrafter(TreeDrafter(), head, **options)


def streams(count, seed=0):
    return torch.randn(count, 3 * HIDDEN, generator=torch.Generator().manual_seed(seed))


def int32(*tokens):
    return np.array(tokens, np.int32)


class Reader:
    """Stands in for the head's session and notes what it is told."""

    def __init__(self):
        self.position = 0
        self.read_at = {}

    def read(self, features, following, skipped=0):
        self.position += skipped
        assert len(features) == len(following) > 0
        for row, token in zip(features[:, 0].tolist(), following.tolist(), strict=True):
            self.read_at[self.position] = (row, token)
            self.position += 1


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_each_stream_is_read_once_with_the_token_after_it(data):
    """Whatever is handed over when, the head has read every known position whose following token is known."""
    text = [100]
    memory, reader = StreamMemory(text), Reader()
    known, end = set(), 0
    for _ in range(data.draw(st.integers(1, 12))):
        text += [100 + len(text) + i for i in range(data.draw(st.integers(1, 4)))]
        start = end + data.draw(st.sampled_from([0, 0, 0, 2]))
        count = data.draw(st.integers(0, 3))
        if count and start + count <= len(text):
            memory.add(start, torch.arange(start, start + count)[:, None].float())
            known |= set(range(start, start + count))
            end = start + count
        if data.draw(st.booleans()):
            memory.take(reader)
    memory.take(reader)
    for position, (row, token) in reader.read_at.items():
        assert row == position
        assert token == text[position + 1]
    readable = {position for position in known if position + 1 < len(text)}
    assert set(reader.read_at) <= readable
    # What was never readable before a gap opened behind it may be lost; the newest run is always there.
    if known:
        newest = end - 1
        if newest in readable:
            assert newest in reader.read_at


def test_the_head_drafts_where_nothing_else_knows():
    session = drafter().begin(DraftRequest(prompt=int32(3, 5, 7)))
    session.read(0, streams(3))
    session.commit(int32(9))
    tree = session.propose(BUDGET)
    tree.validate(32, 8)
    assert set(tree.source.tolist()) == {Source.EAGLE3}


def test_alone_the_head_ignores_what_the_text_repeats():
    session = drafter(alone=True).begin(DraftRequest(prompt=int32(*range(1, 20), *range(1, 10))))
    session.read(0, streams(28))
    session.commit(int32(10))
    assert set(session.propose(BUDGET).source.tolist()) == {Source.EAGLE3}


def test_a_confident_copy_is_left_alone():
    """Once the head's time is known to be dear and the copy is sure, the head is not asked."""
    request = DraftRequest(prompt=int32(*range(1, 35), *range(1, 12)))
    session = drafter().begin(request)
    session.read(0, streams(len(request.prompt)))
    session.commit(int32(12))
    cost = np.full(33, 1e-4, np.float32)
    budget = Budget(max_nodes=32, max_depth=16, min_path_prob=0.02, cost=cost)
    asked = []
    draft = session._head.draft
    session._head.draft = lambda gain: (asked.append(gain), draft(gain))[1]
    session._pass_seconds = 1.0
    tree = session.propose(budget)
    assert len(tree)
    assert Source.EAGLE3 not in tree.source
    assert asked == []
    # With free drafts even a small chance of a miss pays.
    session._pass_seconds = 0.0
    session.propose(budget)
    assert asked


def test_a_head_that_never_pays_is_asked_now_and_then():
    """Drafts that take longer than the steps they could save: the head is left alone, but not for ever."""
    session = drafter().begin(DraftRequest(prompt=int32(3, 5, 7)))
    session.read(0, streams(3))
    asked = []
    draft = session._head.draft
    session._head.draft = lambda gain: (asked.append(len(session._text)), draft(gain))[1]
    budget = Budget(max_nodes=8, max_depth=4, cost=np.full(9, 1e-9, np.float32))
    for step in range(100):
        session.commit(int32(8 + step % 30))
        session.read(3 + step, streams(1, seed=step))
        session.propose(budget)
    assert 3 <= len(asked) <= 6


def head_tree(*tokens: int) -> DraftTree:
    """A chain that the head is very sure of."""
    parents = np.arange(-1, len(tokens) - 1, dtype=np.int32)
    sources = np.full(len(tokens), Source.EAGLE3, np.uint8)
    return DraftTree(int32(*tokens), parents, np.full(len(tokens), 0.98, np.float32), sources)


def test_verdicts_on_the_heads_nodes_teach_the_model_free_sources_nothing():
    """However wrong the head was, copies are as likely afterwards as if it had said nothing."""
    copied = list(range(1, 30))
    alone, fused = (TreeDrafter().begin(DraftRequest(prompt=int32(*copied, 90, *copied[:6]))) for _ in range(2))
    for token in copied[6:12]:
        for session in (alone, fused):
            session.propose(BUDGET)
        fused.propose(BUDGET, head_tree(70, 71, 72))
        for session in (alone, fused):
            session.commit(int32(token))
        expected, found = alone.propose(BUDGET), fused.propose(BUDGET)
        assert found.tokens.tolist() == expected.tokens.tolist()
        assert found.prob.tolist() == expected.prob.tolist()


def test_a_copy_is_followed_though_the_head_drafted_the_last_accepted_token():
    """The place that was copied from up to there stays known, and is still the likeliest once the copy is resumed."""
    copied = list(range(1, 30))
    prompt = int32(*copied, 90, *copied[:6])
    alone, fused = (TreeDrafter().begin(DraftRequest(prompt=prompt)) for _ in range(2))
    for session, extra in ((alone, None), (fused, head_tree(7, 8, 60))):
        session.propose(BUDGET)
        session.propose(BUDGET, extra)
        session.commit(int32(7, 8, 60, 61))
    expected, found = alone.propose(BUDGET), fused.propose(BUDGET)
    assert len(expected)
    assert found.tokens.tolist() == expected.tokens.tolist()
    assert found.prob.tolist() == expected.prob.tolist()


def test_a_copy_continues_a_leaf_of_the_head():
    """Nothing follows the last token anywhere, but what the head proposes has been continued before."""
    grafted = 0
    for favourite in tiny_head().draft_to_target.tolist():
        text = [*[20] * 20, favourite, 31, 32, favourite, 31, 32, *[20] * 4]
        session = drafter().begin(DraftRequest(prompt=int32(*text)))
        session.read(0, streams(len(text), seed=4))
        session.commit(int32(21))
        tree = session.propose(Budget(max_nodes=64, max_depth=8, min_path_prob=0.001))
        path = tree.accepted_path([favourite, 31, 32])
        if path and favourite not in (20, 21, 31, 32):
            assert [Source(source) for source in tree.source[path]] == [Source.EAGLE3, Source.REQUEST, Source.REQUEST]
            grafted += 1
    assert grafted >= 3


def test_a_head_that_is_sure_but_wrong_is_soon_left_alone():
    """What counts is what it brought, not what it promised."""
    session = drafter().begin(DraftRequest(prompt=int32(3, 5, 7)))
    session.read(0, streams(3))
    session._head.draft = lambda _: head_tree(1, 2)
    cost = np.linspace(1, 3, 9, dtype=np.float32)
    asked = 0
    for step in range(40):
        session.commit(int32(8 + step % 30))
        session.read(3 + step, streams(1, seed=step))
        tree = session.propose(Budget(max_nodes=8, max_depth=4, cost=cost))
        asked += session._round is not None
        session._pass_seconds = 0.05
        assert len(tree) or session._round is None
    assert asked <= 20


def test_where_only_sure_paths_are_wanted_the_head_is_not_asked():
    session = drafter().begin(DraftRequest(prompt=int32(3, 5, 7)))
    session.read(0, streams(3))
    session.commit(int32(9))
    assert len(session.propose(replace(BUDGET, min_path_prob=0.5))) == 0
    assert session._round is None


def test_receipt_counts_what_was_proposed_and_what_was_accepted():
    session = drafter().begin(DraftRequest(prompt=int32(3, 5, 7)))
    session.read(0, streams(3))
    session.commit(int32(9))
    tree = session.propose(BUDGET)
    first = int(tree.tokens[0])
    session.read(3, streams(2))
    session.commit(int32(first, VOCAB - 1))
    receipt = session.receipt()
    assert receipt.steps == 2
    assert receipt.drafted == {Source.EAGLE3: len(tree)}
    assert receipt.accepted[Source.EAGLE3] >= 1
    assert receipt.propose_seconds > 0


def test_a_session_without_streams_still_drafts_copies():
    request = DraftRequest(prompt=int32(*range(1, 20), *range(1, 10)))
    session = drafter().begin(request)
    session.commit(int32(10))
    tree = session.propose(BUDGET)
    assert len(tree)
    assert Source.EAGLE3 not in tree.source
