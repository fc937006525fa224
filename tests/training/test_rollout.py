"""What is recorded against transformers' own generation."""

import torch
from transformers import AutoModelForCausalLM

from agentspec.engines.local.model import TargetModel
from agentspec.training.features import FeatureStore, record
from agentspec.training.rollout import Rollout

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
