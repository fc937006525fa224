"""Training: resumable to the bit, and it learns."""

import pytest
import torch

from agentspec.errors import InvalidRequestError
from agentspec.training.batches import epoch_batches
from agentspec.training.features import FeatureStore, write_shard
from agentspec.training.rollout import Features
from agentspec.training.trainer import Recipe, Trainer
from tests.drafters.tiny_heads import HIDDEN, VOCAB, tiny_embedding, tiny_head

RECIPE = Recipe(steps=12, batch_tokens=28, evaluate_every=4, warmup=2, checkpoint_seconds=-1.0, learning_rate=1e-2)


def counting_text(start: int, length: int = 14) -> Features:
    """A text whose next token is always the last one plus one, and whose streams say which it is."""
    tokens = (torch.arange(start, start + length) % VOCAB).int()
    hidden = torch.zeros(length, 3 * HIDDEN)
    hidden[:, :HIDDEN] = tiny_embedding()[tokens]
    following = (tokens + 1) % VOCAB
    top = torch.stack([following, (following + 7) % VOCAB], 1).int()
    return Features(tokens, 2, hidden.bfloat16(), top, torch.tensor([0.9, 0.1]).log().repeat(length, 1))


@pytest.fixture
def stores(tmp_path):
    write_shard(tmp_path / "train.safetensors", [counting_text(start) for start in range(0, 40, 3)])
    write_shard(tmp_path / "held_out.safetensors", [counting_text(start) for start in (4, 11)])
    return FeatureStore([tmp_path / "train.safetensors"]), FeatureStore([tmp_path / "held_out.safetensors"])


def trainer(stores, folder, recipe=RECIPE):
    head = tiny_head(draft_vocab_size=VOCAB).train().requires_grad_()
    return Trainer(head, tiny_embedding(), *stores, recipe=recipe, folder=folder)


class KilledError(Exception):
    pass


def test_a_killed_run_goes_on_to_the_same_losses(stores, tmp_path):
    whole = trainer(stores, tmp_path / "whole")
    expected = whole.run(lambda _: None)

    for last in (3, 8):

        def kill(progress, last=last):
            if progress.step == last:
                raise KilledError

        with pytest.raises(KilledError):
            trainer(stores, tmp_path / "cut").run(kill)
    resumed = trainer(stores, tmp_path / "cut")
    assert resumed.step == 7  # the step that was killed had not been saved
    assert resumed.run(lambda _: None) == expected
    assert [line.acceptance is not None for line in expected] == [step % 4 == 0 for step in range(1, 13)]
    for name, value in whole.head.state_dict().items():
        torch.testing.assert_close(resumed.head.state_dict()[name], value, rtol=0, atol=0)
    assert (tmp_path / "cut" / "log.jsonl").read_text() == (tmp_path / "whole" / "log.jsonl").read_text()


def test_another_recipe_does_not_go_on_from_a_run(stores, tmp_path):
    trainer(stores, tmp_path / "run").run(lambda _: None)
    with pytest.raises(InvalidRequestError, match="another learning_rate"):
        trainer(stores, tmp_path / "run", Recipe(**{**vars_of(RECIPE), "learning_rate": 0.5}))


def vars_of(recipe):
    return {name: getattr(recipe, name) for name in recipe.__dataclass_fields__}


def test_it_learns_what_can_be_learnt(stores, tmp_path):
    recipe = Recipe(**{**vars_of(RECIPE), "steps": 120, "evaluate_every": 60, "single_share": 0.3, "batch_tokens": 56})
    history = trainer(stores, tmp_path / "run", recipe).run(lambda _: None)
    assert history[-1].loss < 0.25 * history[0].loss
    assert min(history[-1].acceptance) > 0.6, history[-1]


def test_the_rate_rises_then_stays_then_falls_to_nothing():
    recipe = Recipe(steps=100, warmup=10, decay_from=0.6, learning_rate=1.0)
    rates = [recipe.rate(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9:60] == [1.0] * 51
    assert rates[99] == pytest.approx(1 / 40)
    assert sorted(rates[60:], reverse=True) == rates[60:]


def test_one_token_ahead_first():
    recipe = Recipe(steps=10, single_share=0.4, test_time_steps=3)
    assert [recipe.ahead(step) for step in range(10)] == [1] * 4 + [3] * 6


def test_every_sequence_is_seen_once_an_epoch(stores, tmp_path):
    one = trainer(stores, tmp_path / "run")
    epoch = -(-len(stores[0]) // 2)  # two sequences of 14 tokens fill a batch of 28
    seen = [index for step in range(epoch) for index in one._chosen(step)]
    assert sorted(seen) == list(range(len(stores[0])))
    assert [one._chosen(step) for step in range(epoch)] != [one._chosen(epoch + step) for step in range(epoch)]


def test_batches_pad_little_and_keep_to_their_size():
    lengths = [10 + 7 * number % 90 for number in range(200)]
    made = epoch_batches(lengths, 256, seed=3)
    assert sorted(index for batch in made for index in batch) == list(range(200))
    sizes = [max(lengths[index] for index in batch) * len(batch) for batch in made]
    assert max(sizes) <= 256
    assert sum(lengths) > 0.85 * sum(sizes)
    assert made == epoch_batches(lengths, 256, seed=3) != epoch_batches(lengths, 256, seed=4)
    assert epoch_batches([300], 256, seed=0) == [[0]]


def test_a_damaged_shard_is_named(tmp_path, stores):
    file = tmp_path / "train.safetensors"
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(InvalidRequestError, match=r"train\.safetensors cannot be read"):
        FeatureStore([file])
