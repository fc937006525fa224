"""The head that comes with the embedded model: in SGLang it changes no text, and drafts as well as it does embedded."""

import argparse
import csv
import inspect
import shlex
import textwrap
import zipfile
from json import decoder
from pathlib import Path
from typing import Any

import pytest

from agentspec.config import Settings
from agentspec.drafters.eagle3.drafter import shipped_head
from agentspec.drafters.eagle3.session import WINDOW
from agentspec.engines.local.pull import pull
from agentspec.engines.local.tokenizer import Tokenizer
from agentspec.errors import ModelError
from benchmarks import sglang_head
from tests.engines.sglang.serving import Server, server_settings, serving

pytestmark = pytest.mark.sglang

MODEL = "smollm2-135m-instruct"
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


def test_same_texts_and_the_accept_length_of_the_embedded_engine(
    embedded: Path, head: Path, index_directory: Path
) -> None:
    assert PROMPT_TOKENS + TOKENS <= WINDOW, "the embedded engine looks back less far than SGLang"
    tokenizer = Tokenizer.load(embedded)
    prompts = [tokenizer.encode(text)[:PROMPT_TOKENS] for text in PROMPTS]
    plain_settings = server_settings(index_directory, speculation=False)
    settings = server_settings(index_directory, head=head, model_free=False)
    chain = {"draft_steps": sglang_head.LENGTH, "draft_branches": 1, "draft_nodes": sglang_head.LENGTH + 1}
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
    texts = [(prompt, tuple(output)) for prompt, output in zip(prompts, plain, strict=True)]
    assert rate == pytest.approx(sglang_head.embedded(embedded, head, texts, threads=1), rel=CLOSE)
