"""AGENTSPEC against plain decoding of the same SGLang: same bodies, same answers, whatever is drafted."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.engines.sglang.models import beginnings
from tests.engines.sglang.serving import Server, server_settings, serving

pytestmark = pytest.mark.sglang

PROMPTS = 20
TOKENS = 128
BATCH = 4


CALL = {
    "type": "structural_tag",
    "structures": [{"begin": "<call>", "schema": {"enum": ["left", "right"]}, "end": "</call>"}],
    "triggers": ["<call>"],
    "at_least_one": True,
}


@dataclass(frozen=True)
class Case:
    """One request, and how to send it."""

    name: str
    body: dict[str, Any]
    path: str = "/generate"
    streamed: bool = False


def greedy(prompt: str, tokens: int = TOKENS, **params: Any) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True} | params
    return {"text": prompt, "sampling_params": sampling}


def seeded(prompt: str, seed: int, **params: Any) -> dict[str, Any]:
    return greedy(prompt, 64, temperature=0.9, sampling_seed=seed, **params)


def processed(prompt: str) -> dict[str, Any]:
    """With a processor of the client's own, which knows nothing of tree paths."""
    from sglang.srt.sampling.custom_logit_processor import DisallowedTokensLogitsProcessor  # noqa: PLC0415

    forbidden = {"token_ids": list(range(200, 400))}
    body = greedy(prompt, 64, custom_params=forbidden)
    return body | {"custom_logit_processor": DisallowedTokensLogitsProcessor.to_str()}


def feature_cases(texts: list[str]) -> list[Case]:
    first, second, third = texts[:3]
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "count": {"type": "integer"}},
    }
    logprobs = {"return_logprob": True, "top_logprobs_num": 3}
    return [
        Case("one token", greedy(first, 1)),
        Case("end token", greedy(second, ignore_eos=False)),
        Case("stop string", greedy(first, stop=["th", "in"])),
        Case("stop token", greedy(second, stop_token_ids=[100, 200, 300])),
        Case("minimum length", greedy(third, 48, ignore_eos=False, min_new_tokens=40, stop_token_ids=[100, 104, 300])),
        Case("frequency penalty", greedy(first, 64, frequency_penalty=0.7)),
        Case("presence penalty", greedy(second, 64, presence_penalty=0.9)),
        Case("repetition penalty", greedy(third, 64, repetition_penalty=1.3)),
        # Not with the repetition penalty too: without overlap, SGLang applies them in an order that each start draws.
        Case("two penalties", greedy(first, 64, frequency_penalty=0.4, presence_penalty=0.3)),
        Case("logit bias", greedy(second, 64, logit_bias={"260": 4.0, "32": -100.0})),
        Case("logprobs", greedy(first, 48) | logprobs),
        Case("logprobs of given tokens", greedy(first, 48) | {"return_logprob": True, "token_ids_logprob": [5, 260]}),
        Case("stop regular expression", greedy(first, stop_regex="[a-z]{2}[ (]")),
        Case("stop string that stays", greedy(first, stop=["th", "in"], no_stop_trim=True)),
        Case("custom logit processor", processed(second)),
        Case("seed", seeded(first, 1)),
        Case("seed, top-k, top-p", seeded(second, 2, top_k=20, top_p=0.9)),
        Case("seed, penalties, bias", seeded(third, 3, frequency_penalty=0.5, logit_bias={"261": 3.0})),
        Case("seed, logprobs", seeded(first, 4) | logprobs),
        Case("regular expression", greedy(second, 48, regex="(ab|cd|e[0-9]){6,9}", ignore_eos=False)),
        Case("JSON schema", greedy(third, 64, json_schema=json.dumps(schema), ignore_eos=False)),
        Case("EBNF grammar", greedy(first, 48, ebnf='root ::= ("ab" | "c" [0-9] "d")+', ignore_eos=False)),
        Case("structural tag", greedy(second, 64, structural_tag=json.dumps(CALL), ignore_eos=False)),
        Case("seeded regular expression", seeded(first, 5, regex="[a-f]{4}-[0-9]{3,30}", ignore_eos=False)),
        Case(
            "two choices", greedy(second, 48) | {"sampling_params": {**greedy(second, 48)["sampling_params"], "n": 2}}
        ),
        Case("streaming", greedy(third, 64) | {"stream": True}, streamed=True),
        Case(
            "chat",
            {
                "model": "m",
                "messages": [{"role": "user", "content": first}],
                "temperature": 0,
                "max_tokens": 48,
                "stop": ["zz"],
            },
            path="/v1/chat/completions",
        ),
    ]


def answer(server: Server, case: Case) -> Any:
    """What must not depend on speculation."""
    if case.streamed:
        return streamed_answer(server, case)
    content = server.post(case.path, case.body)
    if case.path != "/generate":
        return [(choice["message"]["content"], choice["finish_reason"]) for choice in content["choices"]]
    return [summary(one) for one in (content if isinstance(content, list) else [content])]


def streamed_answer(server: Server, case: Case) -> Any:
    last: dict[str, Any] = {}
    events = 0
    with server.http.stream("POST", case.path, json=case.body) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                assert event["text"].startswith(last.get("text", "")), "text that was sent already has changed"
                last, events = event, events + 1
    assert events > 1
    return [summary(last)]


def summary(content: dict[str, Any]) -> dict[str, Any]:
    meta = content["meta_info"]
    found = {"text": content["text"], "tokens": content["output_ids"], "finish": meta["finish_reason"]}
    if "output_token_logprobs" in meta:
        found["logprobs"] = [value for value, _, _ in meta["output_token_logprobs"]]
        found["top"] = [[token for _, token, _ in top] for top in meta.get("output_top_logprobs") or ()]
        given = meta.get("output_token_ids_logprobs") or ()
        found["logprobs"] += [value for row in given for value, _, _ in row]
    return found


def assert_same(case: Case, expected: Any, found: Any) -> None:
    for one, other in zip(expected, found, strict=True):
        if not isinstance(one, dict):
            assert one == other, case.name
            continue
        logprobs, others = one.get("logprobs", []), other.get("logprobs", [])
        rest = {name: value for name, value in one.items() if name != "logprobs"}
        assert rest == {name: value for name, value in other.items() if name != "logprobs"}, case.name
        assert others == pytest.approx(logprobs, abs=1e-3), case.name


@pytest.fixture(scope="module")
def cases(sources: list[str]) -> list[Case]:
    texts = beginnings(sources, PROMPTS)
    return [Case(f"prompt {number}", greedy(text)) for number, text in enumerate(texts)] + feature_cases(texts)


def cached_share(server: Server) -> float:
    """Share of prompt tokens that came from the cache, over 20 turns of a conversation that grows."""
    history = list(range(40, 100))
    prompt = cached = 0
    for turn in range(20):
        history += range(100 + 15 * turn, 115 + 15 * turn)
        sampling = {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}
        content = server.generate(input_ids=history, sampling_params=sampling)
        prompt += content["meta_info"]["prompt_tokens"]
        cached += content["meta_info"]["cached_tokens"]
        history += content["output_ids"]
    return cached / prompt


@dataclass(frozen=True)
class Plain:
    """What plain decoding does."""

    answers: list[Any]
    cached_share: float


@pytest.fixture(scope="module")
def plain(tiny: Path, index_directory: Path, cases: list[Case]) -> Plain:
    """Plain decoding, one request at a time. Overlap is off: under it SGLang's penalties lag a token behind."""
    settings = server_settings(
        index_directory, speculation=False, deterministic=True, disable_overlap_schedule=True, **PROCESSORS
    )
    with serving(tiny, settings) as server:
        return Plain([answer(server, case) for case in cases], cached_share(server))


PROCESSORS = {"enable_custom_logit_processor": True}
CONFIGURATIONS = {
    "EAGLE-3 and model-free, overlap, page 1": {"head": True},
    "EAGLE-3 and model-free, no overlap, page 16": {"head": True, "disable_overlap_schedule": True, "page_size": 16},
    "EAGLE-3 alone, overlap, page 16": {"head": True, "model_free": False, "page_size": 16},
    "model-free, overlap, page 1": {},
    "model-free, no overlap, page 16": {"disable_overlap_schedule": True, "page_size": 16},
}


@pytest.fixture(scope="module", params=CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
def server(
    request: pytest.FixtureRequest, tiny: Path, tiny_head: Path, index_directory: Path, plain: Plain
) -> Iterator[Server]:
    options = dict(request.param)
    head = tiny_head if options.pop("head", False) else None
    drafting = {"min_path_prob": 0.001}
    settings = server_settings(
        index_directory, head=head, deterministic=True, drafting=drafting, **options, **PROCESSORS
    )
    with serving(tiny, settings) as running:
        yield running


def test_equal_to_plain_decoding_one_by_one(server: Server, cases: list[Case], plain: Plain) -> None:
    for case, reference in zip(cases, plain.answers, strict=True):
        assert_same(case, reference, answer(server, case))
    assert server.metric("agentspec_accepted_nodes_total") > 0, "no draft was ever right, so little was tried"


def test_a_processor_that_knows_no_paths_turns_drafts_off(server: Server, sources: list[str]) -> None:
    prompt = beginnings(sources, 2)[1]
    meta = server.generate(**processed(prompt))["meta_info"]
    assert meta["agentspec"][0]["drafted"] == {}
    assert meta["agentspec"][0]["verify_steps"] == meta["completion_tokens"] - 1


def test_equal_to_plain_decoding_in_batches(server: Server, cases: list[Case], plain: Plain) -> None:
    with ThreadPoolExecutor(BATCH) as pool:
        found = list(pool.map(lambda case: answer(server, case), cases))
    for case, reference, one in zip(cases, plain.answers, found, strict=True):
        assert_same(case, reference, one)


def test_prefixes_are_reused_as_in_plain_decoding(server: Server, plain: Plain) -> None:
    assert plain.cached_share > 0.8
    assert cached_share(server) >= plain.cached_share - 0.02
