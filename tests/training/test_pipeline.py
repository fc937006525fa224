"""`agentspec train-head`, start to end, on a tiny random model."""

import json
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import agentspec.drafters.tree
from agentspec.drafters.eagle3.drafter import Eagle3Drafter
from agentspec.engines.local.checkpoint import Checkpoint
from agentspec.errors import InvalidRequestError, ModelError
from agentspec.training.data import DataPlan
from agentspec.training.features import FeatureStore
from agentspec.training.pipeline import HeadPlan, train_head
from agentspec.training.trainer import Recipe
from tests.engines.local.tiny_target import make_folder

RECIPE = Recipe(steps=6, batch_tokens=512, test_time_steps=2, evaluate_every=3, warmup=1, checkpoint_seconds=-1.0)


class Notes:
    def __init__(self):
        self.recorded, self.steps = [], []

    def recording(self, part, done, total):
        self.recorded.append((part, done, total))

    def training(self, progress, total):
        self.steps.append(progress.step)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A folder with text, a file that is none, and conversations."""
    folder = tmp_path_factory.mktemp("texts")
    source = Path(agentspec.drafters.tree.__file__).read_text()
    (folder / "source.py").write_text(source * 3)
    (folder / "picture.bin").write_bytes(b"\xff\xfe\x00")
    return folder


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    file = tmp_path_factory.mktemp("chats") / "chats.jsonl"
    turns = [{"role": "user", "content": "Say a"}, {"role": "assistant", "content": "a"}]
    file.write_text("".join(json.dumps({"messages": turns}) + "\n" for _ in range(10)))
    return file


def plan(folder, tmp_path, **changes) -> HeadPlan:
    values = {
        "model": str(folder),
        "cache_directory": tmp_path / "cache",
        "work": tmp_path / "work",
        "output": tmp_path / "head",
        "data": DataPlan(packages=False),
        "recipe": RECIPE,
        "max_new": 4,
        "draft_vocab_size": 100,
    }
    return HeadPlan(**{**values, **changes})


def test_a_head_comes_out_and_drafts(small_folder, texts, chats, tmp_path):
    notes = Notes()
    data = DataPlan(packages=False, texts=(texts,), chats=(chats,), held_out=3)
    wanted = plan(small_folder, tmp_path, data=data)
    output = train_head(wanted, notes)
    assert notes.steps == [1, 2, 3, 4, 5, 6]
    assert {part for part, *_ in notes.recorded} == {"held_out", "held_out_texts", "train", "texts"}
    card = (output / "README.md").read_text()
    assert "9 prompts for the target to answer greedily" in card
    assert "  - conversations: **" in card
    assert "  - text files: **" in card
    assert "  - documents: **" not in card  # there were none
    assert "| 6 | 0." in card
    embedding = Checkpoint(small_folder).fetch("model.embed_tokens.weight")
    drafter = Eagle3Drafter.load(output, embedding, 7, torch.float32)
    assert drafter.capture == (2, 3, 4)
    one = FeatureStore(sorted((tmp_path / "work" / "train").glob("*.safetensors")))[0]
    session = drafter.begin()
    session.read(one.hidden[:3], one.tokens[1:4].long())
    assert len(session.draft())
    # Everything is there, so the same call has nothing left to do.
    again = Notes()
    train_head(wanted, again)
    assert again.steps == again.recorded == []


def test_a_head_is_trained_further(small_folder, texts, tmp_path):
    data = DataPlan(packages=False, texts=(texts,), held_out=3)
    first = train_head(plan(small_folder, tmp_path / "first", data=data), Notes())
    # The rate is nothing, so what comes out is what went in.
    recipe = replace(RECIPE, learning_rate=0.0, single_share=0.0)
    further = plan(small_folder, tmp_path / "further", data=data, recipe=recipe, start=first, draft_vocab_size=50)
    second = train_head(further, Notes())
    assert (second / "model.safetensors").read_bytes() == (first / "model.safetensors").read_bytes()
    card = (second / "README.md").read_text()
    assert "- Draft vocabulary: 100 tokens" in card
    assert "- Begun as: the head in `head`, trained further" in card
    changed = train_head(replace(further, work=tmp_path / "w", output=tmp_path / "h", recipe=RECIPE), Notes())
    assert (changed / "model.safetensors").read_bytes() != (first / "model.safetensors").read_bytes()


def test_a_head_of_another_model_is_not_trained_further(small_folder, texts, tmp_path):
    data = DataPlan(packages=False, texts=(texts,), held_out=3)
    first = train_head(plan(small_folder, tmp_path / "first", data=data), Notes())
    config = json.loads((first / "config.json").read_text())
    (first / "config.json").write_text(json.dumps({**config, "hidden_size": 2 * config["hidden_size"]}))
    with pytest.raises(ModelError, match="made for a model of width"):
        train_head(plan(small_folder, tmp_path / "further", data=data, start=first), Notes())


def test_too_little_data_is_said(small_folder, tmp_path):
    with pytest.raises(InvalidRequestError, match="too little to train on"):
        train_head(plan(small_folder, tmp_path), Notes())


def test_a_model_without_room_for_a_head_is_said(tmp_path):
    with pytest.raises(ModelError, match="at least 7 layers; train one with SpecForge"):
        train_head(plan(make_folder(tmp_path / "model"), tmp_path), Notes())


def test_a_bad_line_of_conversations_is_named(small_folder, tmp_path):
    file = tmp_path / "chats.jsonl"
    file.write_text('{"messages": [{"role": "user", "content": "a"}]}\n{"messages": 3}\n')
    data = DataPlan(packages=False, chats=(file,))
    with pytest.raises(InvalidRequestError, match=r"chats\.jsonl, line 2: expected"):
        train_head(plan(small_folder, tmp_path, data=data), Notes())


def test_a_run_killed_while_it_trains_ends_with_the_same_head(small_folder, texts, tmp_path):
    data = DataPlan(packages=False, texts=(texts,), held_out=3)
    recipe = replace(RECIPE, steps=16)
    cut = plan(small_folder, tmp_path / "cut", data=data, recipe=recipe)
    code = (
        "import pickle, sys, torch; torch.set_num_threads(1)\n"
        "from agentspec.training.pipeline import train_head\n"
        "from tests.training.test_pipeline import Notes\n"
        "train_head(pickle.load(sys.stdin.buffer), Notes())"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(pickle.dumps(cut))
        process.stdin.close()
        while not (cut.work / "checkpoint.pt").exists():
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    notes = Notes()
    train_head(cut, notes)
    whole = plan(small_folder, tmp_path / "whole", data=data, recipe=recipe)
    train_head(whole, Notes())
    assert notes.steps[-1] == 16
    assert notes.steps[0] > 1  # it went on, it did not begin again
    assert (cut.work / "log.jsonl").read_text() == (whole.work / "log.jsonl").read_text()
    assert (cut.output / "model.safetensors").read_bytes() == (whole.output / "model.safetensors").read_bytes()
