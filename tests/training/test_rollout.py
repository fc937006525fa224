"""What is recorded against transformers' own generation."""

from types import SimpleNamespace

import torch
from transformers import AutoModelForCausalLM

from agentspec.drafters.eagle3.session import WINDOW
from agentspec.engines.local.model import TargetModel
from agentspec.training.features import FeatureStore, record
from agentspec.training.rollout import LOOKED_AFTER, Features, Rollout

CAPTURE = (2, 3, 4)


def load(folder):
    return TargetModel.load(str(folder), folder, device="cpu", dtype="float32", threads=1)


def test_outputs_streams_and_distributions_are_the_targets(small_folder):
    oracle = AutoModelForCausalLM.from_pretrained(small_folder, dtype=torch.float32).eval()
    model = load(small_folder)
    prompts = [[5, 9, 17, 300, 41], [7], [77, 78, 79]]
    for one, prompt in zip(Rollout(model, CAPTURE, top=4).generate(prompts, 8), prompts, strict=True):
        tokens = one.tokens.long()
        assert tokens[: len(prompt)].tolist() == prompt
        assert one.prompt_length == len(prompt)
        with torch.no_grad():
            output = oracle(tokens[None], output_hidden_states=True)
        greedy = output.logits[0].argmax(-1)
        assert tokens[len(prompt) :].tolist() == greedy[len(prompt) - 1 : -1].tolist()
        ended = int(tokens[-1]) in model.eos_token_ids
        assert len(tokens) == len(prompt) + 8 or ended
        streams = torch.cat([output.hidden_states[layer][0] for layer in CAPTURE], -1)
        torch.testing.assert_close(one.hidden.float(), streams, rtol=2e-2, atol=2e-2)
        expected = output.logits[0].log_softmax(-1).topk(4)
        torch.testing.assert_close(one.top_logprobs, expected.values, rtol=1e-3, atol=1e-3)
        assert one.top_ids.tolist() == expected.indices.tolist()


def test_texts_are_read_and_count_as_output(small_folder):
    (one,) = Rollout(load(small_folder), CAPTURE).generate([[4, 5, 6]], 0)
    assert one.tokens.tolist() == [4, 5, 6]
    assert one.prompt_length == 1


def rows(tokens: list[int], prompt_length: int) -> Features:
    """Every row says its own number."""
    numbers = torch.arange(len(tokens))[:, None]
    return Features(torch.tensor(tokens), prompt_length, numbers, numbers, numbers.float())


def test_loops_and_the_beginnings_of_long_prompts_are_not_worth_learning():
    prompt, said = list(range(WINDOW + 5)), list(range(700, 730))
    learnt = rows([*prompt, *said, *said, 1], len(prompt)).worth_learning()
    assert learnt.tokens.tolist() == [*prompt[5:], *said]
    assert learnt.prompt_length == WINDOW
    for kept in (learnt.hidden, learnt.top_ids, learnt.top_logprobs):
        assert kept[:, 0].tolist() == list(range(5, len(prompt) + len(said)))
    short = rows([1, 2, *said], 2).worth_learning()
    assert short.tokens.tolist() == [1, 2, *said]
    assert short.prompt_length == 2


class Circle:
    """A target that counts in a circle; of token 99 it says the end."""

    eos_token_ids = frozenset({98})
    length = 20

    def new_cache(self, slots: int) -> SimpleNamespace:
        return SimpleNamespace(length=0, slots=slots)

    def forward_with_hidden(self, inputs, capture):
        tokens = torch.cat([one.tokens for one in inputs])
        following = torch.where(tokens == 99, 98, (tokens + 1) % self.length)
        logits = torch.zeros(len(tokens), 100)
        logits[torch.arange(len(tokens)), following] = 1.0
        return logits, torch.zeros(len(tokens), len(capture))


def test_an_output_that_repeats_itself_is_not_continued_and_what_repeats_is_not_kept(tmp_path):
    rollout = Rollout(Circle(), CAPTURE, top=2)  # type: ignore[arg-type]
    prompts = [[50, 3], [99]]
    looping, ending = rollout.generate(prompts, 400)
    length = len(looping.tokens) - 2
    # A whole circle must come again before it counts.
    assert 2 * Circle.length <= length < 2 * Circle.length + LOOKED_AFTER
    assert ending.tokens.tolist() == [99, 98]

    def recorded(max_new):
        folder = tmp_path / str(max_new)
        files = record(rollout, prompts, folder, shard_size=2, max_new=max_new, report=lambda *_: None)
        return {tuple(one.tokens.tolist()) for one in FeatureStore(files)}

    circle = [(3 + step) % Circle.length for step in range(1, Circle.length + 1)]
    assert recorded(400) == {(50, 3, *circle), (99, 98)}
    # What is only read is no output of the target's, and stays as it is.
    assert recorded(0) == {(50, 3), (99,)}


def test_a_recording_goes_on_where_it_was_and_stops_in_time(small_folder, tmp_path):
    rollout = Rollout(load(small_folder), CAPTURE)
    prompts = [[7] * length for length in (3, 9, 4, 8, 2)]

    def make(folder, **options):
        done = []
        files = record(
            rollout,
            prompts,
            folder,
            shard_size=2,
            max_new=3,
            report=lambda shards, total: done.append((shards, total)),
            **options,
        )
        return files, done

    files, done = make(tmp_path / "all")
    assert done == [(1, 3), (2, 3), (3, 3)]
    assert sorted(len(one) for one in (FeatureStore([file]) for file in files)) == [1, 2, 2]
    written = {file: file.read_bytes() for file in files}
    files[1].unlink()
    stamp = files[0].stat().st_mtime_ns
    assert make(tmp_path / "all")[0] == files
    assert {file: file.read_bytes() for file in files} == written
    assert files[0].stat().st_mtime_ns == stamp
    assert not list((tmp_path / "all").glob("*.partial"))
    first, _ = make(tmp_path / "short", deadline=0.0)
    assert [file.name for file in first] == [files[0].name]
