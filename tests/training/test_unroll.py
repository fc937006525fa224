import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.drafters.eagle3.session import Growth
from agentspec.training.rollout import Features
from agentspec.training.unroll import DraftVocabulary, TrainingBatch, drafted_logits, training_time_test
from tests.drafters.tiny_heads import HIDDEN, VOCAB, begin, tiny_embedding, tiny_head

TOP = 5


def sequence(seed: int, length: int, prompt: int = 2) -> Features:
    generator = torch.Generator().manual_seed(seed)
    logprobs = torch.randn(length, VOCAB, generator=generator).log_softmax(-1)
    top = logprobs.topk(TOP)
    return Features(
        tokens=torch.randint(0, VOCAB, (length,), generator=generator, dtype=torch.int32),
        prompt_length=prompt,
        hidden=torch.randn(length, 3 * HIDDEN, generator=generator),
        top_ids=top.indices.int(),
        top_logprobs=top.values,
    )


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), length=st.integers(7, 12), read=st.integers(1, 4), other=st.integers(2, 9))
def test_training_sees_what_drafting_will_do(seed, length, read, other):
    """The logits k tokens ahead of a position are those of the drafting session that walks the same tokens."""
    every = {"draft_vocab_size": VOCAB}
    head, embedding = tiny_head(seed % 5, **every), tiny_embedding()
    one = sequence(seed, length)
    batch = TrainingBatch.of([sequence(seed + 1, other), one])
    steps = 2
    ahead = list(drafted_logits(head, embedding, batch.hidden, batch.tokens, steps))
    everything = Growth(depth=steps, width=VOCAB, children=VOCAB, min_path_prob=0.0, level_gain=0.0)
    session = begin(head, embedding, everything)
    # In two parts, as prefill and a verify step would hand them over.
    cut = read // 2
    if cut:
        session.read(one.hidden[:cut], one.tokens[1 : cut + 1].long())
    session.read(one.hidden[cut:read], one.tokens[cut + 1 : read + 1].long())
    tree = session.draft()
    parent = -1
    for step in range(steps):
        expected = ahead[step][1, read - 1].softmax(-1)
        found = {int(tree.tokens[i]): (i, float(tree.prob[i])) for i in range(len(tree)) if tree.parents[i] == parent}
        for token, (_, prob) in found.items():
            assert prob == pytest.approx(float(expected[token]), abs=1e-5)
        assert len(found) == VOCAB
        parent = found[int(one.tokens[read + 1 + step])][0]


def test_loss_is_the_cross_entropy_of_a_loop_over_positions():
    head, embedding = tiny_head(3), tiny_embedding()
    sequences = [sequence(5, 9, prompt=4), sequence(6, 7, prompt=1)]
    batch = TrainingBatch.of(sequences)
    vocabulary = DraftVocabulary(head.draft_to_target, VOCAB)
    results = training_time_test(head, embedding, vocabulary, batch, 3)
    known = head.draft_to_target.tolist()
    for step, logits in enumerate(drafted_logits(head, embedding, batch.hidden, batch.tokens, 3)):
        total = weight = 0.0
        hits = count = 0
        for row, one in enumerate(sequences):
            for base in range(len(one.tokens) - 1 - step):
                at = base + 1 + step
                own = at >= one.prompt_length - 1
                pairs = zip(one.top_ids[at].tolist(), one.top_logprobs[at].exp().tolist(), strict=True)
                probs = {token: prob for token, prob in pairs if token in known}
                best = int(one.top_ids[at, 0])
                weight += 1.0 if own else 0.3
                count += own
                logq = logits[row, base].log_softmax(-1)
                if best in known:
                    mass = sum(probs.values())
                    cross = -sum(p / mass * float(logq[known.index(token)]) for token, p in probs.items())
                    total += cross * (1.0 if own else 0.3)
                    hits += bool(own and known[int(logq.argmax())] == best)
        assert float(results[step].loss) == pytest.approx(total / weight, rel=1e-4)
        assert (int(results[step].hits), int(results[step].count)) == (hits, count)


def test_padding_changes_nothing():
    head, embedding = tiny_head(3), tiny_embedding()
    vocabulary = DraftVocabulary(head.draft_to_target, VOCAB)
    short, long = sequence(1, 6), sequence(2, 11)
    alone = [training_time_test(head, embedding, vocabulary, TrainingBatch.of([one]), 2) for one in (short, long)]
    together = training_time_test(head, embedding, vocabulary, TrainingBatch.of([short, long]), 2)
    for step in range(2):
        assert int(together[step].hits) == sum(int(one[step].hits) for one in alone)
        assert int(together[step].count) == sum(int(one[step].count) for one in alone)
