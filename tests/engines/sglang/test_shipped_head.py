"""The head that comes with the embedded model: in SGLang it changes no text, and drafts as well as it does embedded."""

import argparse
import csv
import inspect
import shlex
import textwrap
import zipfile
from dataclasses import replace
from json import decoder
from pathlib import Path
from typing import Any

import pytest
import torch

from agentspec.config import Settings
from agentspec.drafters.base import Budget
from agentspec.drafters.eagle3.checkpoint import load_head
from agentspec.drafters.eagle3.drafter import Eagle3Drafter, shipped_head
from agentspec.drafters.eagle3.session import WINDOW, Growth
from agentspec.engines.local.checkpoint import Checkpoint
from agentspec.engines.local.model import TargetModel
from agentspec.engines.local.pull import pull
from agentspec.engines.local.tokenizer import Tokenizer
from agentspec.engines.local.weights import OuterWeights
from agentspec.errors import ModelError
from agentspec.training.replay import replay_head
from agentspec.training.rollout import Rollout
from tests.engines.sglang.serving import Server, server_settings, serving

pytestmark = pytest.mark.sglang

MODEL = "smollm2-135m-instruct"
CHAIN = 3
PROMPTS = [inspect.getsource(module) for module in (argparse, csv, decoder, shlex, textwrap, zipfile)]
PROMPT_TOKENS = 128
TOKENS = 64
CLOSE = 0.05


@pytest.fixture(scope="module")
def embedded() -> Path:
    try:
        return pull(MODEL, Settings.load().cache_directory)
    except ModelError as error:
        pytest.skip(f"the embedded model cannot be fetched: {error}")


@pytest.fixture(scope="module")
def head() -> Path:
    folder = shipped_head(MODEL)
    assert folder is not None
    return folder


def answers(server: Server, prompts: list[list[int]]) -> list[dict[str, Any]]:
    sampling = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}
    return [server.generate(input_ids=prompt, sampling_params=sampling) for prompt in prompts]


def embedded_rate(model: Path, head: Path, prompts: list[list[int]], outputs: list[list[int]]) -> float:
    """Tokens per verify step of the embedded engine on texts that are known, with a chain as SGLang drafts it."""
    target = TargetModel.load(str(model), model, device="cpu", dtype="bfloat16", threads=1)
    embedding = OuterWeights.read(Checkpoint(model).fetch).embedding
    weights = load_head(head, hidden=embedding.shape[1], vocab_size=embedding.shape[0], dtype=torch.bfloat16)
    growth = Growth(depth=CHAIN, width=1, children=1, min_path_prob=0.0, level_gain=0.0)
    drafter = Eagle3Drafter(weights, embedding, target.layout.layers, growth, threads=1)
    texts = [prompt + output for prompt, output in zip(prompts, outputs, strict=True)]
    read = Rollout(target, drafter.capture).generate(texts, max_new=0)
    recorded = [replace(one, prompt_length=len(prompt)) for one, prompt in zip(read, prompts, strict=True)]
    return replay_head(drafter, recorded, Budget(CHAIN, CHAIN, min_path_prob=0.0)).tokens_per_step


def test_same_texts_and_the_accept_length_of_the_embedded_engine(
    embedded: Path, head: Path, index_directory: Path
) -> None:
    assert PROMPT_TOKENS + TOKENS <= WINDOW, "the embedded engine looks back less far than SGLang"
    tokenizer = Tokenizer.load(embedded)
    prompts = [tokenizer.encode(text)[:PROMPT_TOKENS] for text in PROMPTS]
    plain_settings = server_settings(index_directory, speculation=False)
    settings = server_settings(index_directory, head=head, model_free=False)
    chain = {"draft_steps": CHAIN, "draft_branches": 1, "draft_nodes": CHAIN + 1}
    settings = settings.model_copy(update={"sglang": settings.sglang.model_copy(update=chain)})
    with serving(embedded, plain_settings) as server:
        plain = [answer["output_ids"] for answer in answers(server, prompts)]
    with serving(embedded, settings) as server:
        drafted = answers(server, prompts)

    assert [answer["output_ids"] for answer in drafted] == plain
    steps = sum(answer["meta_info"]["spec_verify_ct"] for answer in drafted)
    # The first token of each comes from its prompt.
    rate = sum(len(output) - 1 for output in plain) / steps
    assert rate > 1.4, "a head that knows its target drafts more"
    assert rate == pytest.approx(embedded_rate(embedded, head, prompts, plain), rel=CLOSE)
