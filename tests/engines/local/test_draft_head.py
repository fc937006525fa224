"""The engine with an EAGLE-3 head: the same text, true streams, sound settings."""

from dataclasses import replace

import pytest
import torch

from agentspec.config import Settings
from agentspec.drafters.eagle3.checkpoint import save_head
from agentspec.drafters.eagle3.drafter import Eagle3Drafter
from agentspec.drafters.fused_drafter import FusedDrafter, FusedSession
from agentspec.drafters.tree_drafter import TreeDrafter
from agentspec.engines.local import draft_head as draft_head_module
from agentspec.engines.local.checkpoint import Checkpoint
from agentspec.engines.local.draft_head import EMBEDDING, expected_speedup, load_head
from agentspec.engines.local.model import SequenceInput
from agentspec.errors import ModelError
from agentspec.training.initialise import initial_head
from tests.engines.local.running import ask, collect, collect_all, running
from tests.engines.local.tiny_target import VOCABULARY, load_tiny

CAPTURE = (2, 4, 5)
PROMPTS = ["def main():", "import os\n", "x = x = x =", "while True:\n    try:", "return [" * 30]
SAMPLING = {
    "greedy": {},
    "seeded": {"temperature": 1.0, "seed": 1234},
    "penalties": {"temperature": 0.8, "seed": 3, "repetition_penalty": 1.2, "frequency_penalty": 0.4},
    "two choices": {"temperature": 1.0, "seed": 9, "n": 2},
}


@pytest.fixture(scope="module")
def target(deep_folder):
    return load_tiny(deep_folder)


@pytest.fixture(scope="module")
def head_folder(deep_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("head")
    tokens = torch.arange(0, VOCABULARY, 4)
    save_head(initial_head(deep_folder, CAPTURE, tokens, seed=0), folder)
    return folder


@pytest.fixture(scope="module")
def head(deep_folder, head_folder):
    embedding = Checkpoint(deep_folder).fetch(EMBEDDING)
    return Eagle3Drafter.load(head_folder, embedding, layers=8, dtype=torch.float32)


@pytest.mark.parametrize("name", SAMPLING)
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "fused"])
async def test_the_text_is_the_same_with_a_head(target, head, name, alone):
    requests = [ask(id=prompt, prompt=prompt, max_tokens=32, **SAMPLING[name]) for prompt in PROMPTS]
    plain = [replace(request, id=request.id + " plain", speculation=False) for request in requests]
    async with running(target, drafter=FusedDrafter(TreeDrafter(), head, alone=alone)) as engine:
        drafted = await collect_all(engine, requests)
        expected = await collect_all(engine, plain)
    for results, wanted in zip(drafted, expected, strict=True):
        assert [one.tokens for one in results] == [one.tokens for one in wanted]
        for one in results:
            assert one.receipt.warnings == ()
    if alone:
        assert sum(one.receipt.drafted.get("eagle3", 0) for results in drafted for one in results) > 0
        assert {source for results in drafted for one in results for source in one.receipt.drafted} == {"eagle3"}


async def test_the_head_reads_the_streams_of_the_committed_text(target, head, monkeypatch):
    """After prefill in chunks, reused prefixes and accepted branches: what was read is what a linear pass computes."""
    read = {}
    original = FusedSession.read

    def spy(self, start, streams):
        read.setdefault(id(self), []).append((start, streams))
        original(self, start, streams)

    monkeypatch.setattr(FusedSession, "read", spy)
    prompt = tuple(target.tokenizer.encode("x = [1, 2, 3]\nx = [1, 2, 3]\n" * 12))
    async with running(target, drafter=FusedDrafter(TreeDrafter(), head)) as engine:
        [first] = await collect(engine, ask(prompt=prompt, max_tokens=40, ignore_eos=True))
        again = (*prompt, *first.tokens[:20], 7)
        [second] = await collect(engine, ask(id="again", prompt=again, max_tokens=20, ignore_eos=True))
    assert sum(first.receipt.accepted.values()) > 0
    assert second.receipt.cached_tokens > 0
    for calls, text, skipped in zip(
        read.values(),
        ((*prompt, *first.tokens), (*again, *second.tokens)),
        (0, second.receipt.cached_tokens),
        strict=True,
    ):
        tokens = torch.tensor(text)
        line = SequenceInput(target.model.new_cache(len(text)), tokens, torch.arange(len(text)))
        _, expected = target.model.forward_with_hidden([line], CAPTURE)
        position = skipped
        for start, streams in calls:
            assert start == position
            torch.testing.assert_close(streams, expected[start : start + len(streams)], rtol=1e-4, atol=1e-4)
            position += len(streams)
        assert position >= len(text) - 1


async def test_a_head_that_fails_costs_drafts_but_no_text(target, head, monkeypatch):
    monkeypatch.setattr(FusedSession, "propose", lambda self, budget: 1 / 0)
    async with running(target, drafter=FusedDrafter(TreeDrafter(), head)) as engine:
        [one] = await collect(engine, ask(prompt=PROMPTS[0], max_tokens=8))
        [plain] = await collect(engine, ask(prompt=PROMPTS[0], max_tokens=8, speculation=False))
    assert one.tokens == plain.tokens
    assert "division by zero" in one.receipt.warnings[0]


def settings(folder, **engine):
    return Settings.load(engine={"model": str(folder), **engine})


def test_the_setting_names_a_head_or_none(target, deep_folder, head_folder):
    def load(**engine):
        return load_head(settings(deep_folder, **engine), target.model, target.cost)

    assert load(draft_head=str(head_folder)).capture == CAPTURE
    assert load(draft_head="none") is None
    assert load() is None  # no head comes with this model
    assert load(draft_head=str(head_folder), speculation=False) is None


class RowCost:
    """Every row costs as much as the first."""

    def seconds(self, rows, context):
        return 0.01 * rows


class WideCost:
    """As many rows as a processor without matrix units takes before they cost time, then every row counts."""

    def seconds(self, rows, context):
        return 0.01 * max(1.0, rows / 8)


def test_what_a_head_promises_depends_on_the_machine():
    assert expected_speedup(RowCost(), 0.0) < 1
    assert expected_speedup(WideCost(), 0.0) > 2
    # A slow head makes the best tree smaller, and at last no tree pays.
    promises = [expected_speedup(WideCost(), seconds) for seconds in (0.0005, 0.002, 0.01, 0.1)]
    assert promises == sorted(promises, reverse=True)
    assert promises[1] > 1.2
    assert promises[-1] < 1


def test_a_shipped_head_is_used_where_it_promises_to_pay(target, deep_folder, head_folder, monkeypatch):
    monkeypatch.setattr(draft_head_module, "shipped_head", lambda model: head_folder)
    assert load_head(settings(deep_folder), target.model, WideCost()) is not None
    monkeypatch.setattr(Eagle3Drafter, "pass_seconds", lambda self: 1.0)
    assert load_head(settings(deep_folder), target.model, WideCost()) is None
    assert load_head(settings(deep_folder), target.model, RowCost()) is None
    assert load_head(settings(deep_folder, draft_head=str(head_folder)), target.model, RowCost()) is not None


def test_a_head_of_another_model_is_refused(tiny, tiny_folder, head_folder):
    with pytest.raises(ModelError, match="not three of this model's 2"):
        load_head(settings(tiny_folder, draft_head=str(head_folder)), tiny.model, tiny.cost)
