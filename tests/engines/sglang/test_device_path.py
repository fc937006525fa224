"""The device path inside a real server, its kernels interpreted: the same answers as plain decoding."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agentspec.engines.sglang.binding import PARAMS_KEY
from tests.engines.sglang.models import beginnings
from tests.engines.sglang.serving import server_settings, serving
from tests.engines.sglang.test_exactness import greedy, seeded

pytestmark = pytest.mark.sglang

TOKENS = 40


def bodies(texts: list[str]) -> dict[str, dict[str, Any]]:
    """What goes through the device wholly, and what keeps its batch's merger on the host."""
    first, second, third = texts[:3]
    return {
        "greedy": greedy(first, TOKENS),
        "greedy, again": greedy(second, TOKENS),
        "seeded": seeded(first, 1) | {"return_logprob": True},
        "seeded, top-k, top-p": seeded(second, 2, top_k=20, top_p=0.9),
        "two penalties": greedy(first, TOKENS, frequency_penalty=0.4, presence_penalty=0.3),
        "logit bias": greedy(second, TOKENS, logit_bias={"260": 4.0, "32": -100.0}),
        "grammar": greedy(third, TOKENS, regex="(ab|cd|e[0-9]){6,9}", ignore_eos=False),
    }


def test_equal_to_plain_decoding(
    tiny: Path, tiny_head: Path, index_directory: Path, sources: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = bodies(beginnings(sources, 3))
    off = server_settings(index_directory, speculation=False, deterministic=True, disable_overlap_schedule=True)
    with serving(tiny, off) as server:
        plain = {name: server.post("/generate", body)["output_ids"] for name, body in wanted.items()}
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("AGENTSPEC_SGLANG__DEVICE_VERIFY", "on")
    on = server_settings(index_directory, head=tiny_head, deterministic=True, drafting={"min_path_prob": 0.001})
    with serving(tiny, on) as server:
        for name, body in wanted.items():  # with a prediction that is right half of the way, so that paths are followed
            half = plain[name][: len(plain[name]) // 2]
            body["sampling_params"]["custom_params"] = {PARAMS_KEY: {"prediction": half}}
        with ThreadPoolExecutor(3) as pool:
            answers = list(pool.map(lambda body: server.post("/generate", body), wanted.values()))
    accepted: dict[str, int] = {}
    drafted: dict[str, int] = {}
    for (name, tokens), answer in zip(plain.items(), answers, strict=True):
        assert answer["output_ids"] == tokens, name
        [receipt] = answer["meta_info"]["agentspec"]
        for source, count in receipt["accepted"].items():
            accepted[source] = accepted.get(source, 0) + count
        for source, count in receipt["drafted"].items():
            drafted[source] = drafted.get(source, 0) + count
    assert accepted["prediction"] > 3 * TOKENS // 2, "few drafts were accepted, so little was tried"
    assert drafted["eagle3"] > TOKENS
