"""One long-lived server: distributions, repositories, bad input, aborts."""

import itertools
import json
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import LlamaForCausalLM

from agentspec.engines.sglang.binding import PARAMS_KEY
from agentspec.index.build import BuildOptions, build_index
from agentspec.index.tokenizer import IndexTokenizer
from tests.engines.sglang.serving import Server, server_settings, serving

pytestmark = pytest.mark.sglang

stats = pytest.importorskip("scipy.stats")  # SGLang brings it


@pytest.fixture(scope="module")
def server(tiny: Path, tiny_head: Path, index_directory: Path) -> Iterator[Server]:
    with serving(tiny, server_settings(index_directory, head=tiny_head)) as running:
        yield running


def ours(**fields: Any) -> dict[str, Any]:
    return {PARAMS_KEY: fields}


def receipt_of(answer: dict[str, Any]) -> dict[str, Any]:
    (receipt,) = answer["meta_info"]["agentspec"]
    return receipt


class TestDistribution:
    TOP_K = 4
    LENGTH = 3
    DRAWS = 2000
    AT_ONCE = 8  # in a large batch on a CPU drafts do not pay and are left out
    PROMPT = tuple(range(40, 80))

    @pytest.mark.parametrize(("drafted", "min_p"), [(0, 0.0), (1, 0.3)])
    def test_sampling_keeps_the_targets_distribution(
        self, server: Server, tiny: Path, drafted: int, min_p: float
    ) -> None:
        expected = self.exact(tiny, min_p)
        prediction = sorted(expected, key=expected.__getitem__, reverse=True)[drafted]
        sampling = {
            "temperature": 1.0,
            "top_k": self.TOP_K,
            "min_p": min_p,
            "max_new_tokens": self.LENGTH,
            "ignore_eos": True,
            "custom_params": ours(prediction=list(prediction)),
        }
        seen: Counter[tuple[int, ...]] = Counter()
        accepted = 0
        for _ in range(self.DRAWS // self.AT_ONCE):
            for answer in server.generate(input_ids=[list(self.PROMPT)] * self.AT_ONCE, sampling_params=sampling):
                seen[tuple(answer["output_ids"])] += 1
                accepted += sum(receipt_of(answer)["accepted"].values())
        assert accepted > self.DRAWS / 50, "hardly a draft was accepted: the test says nothing"
        assert set(seen) <= set(expected), "a token was drawn that top-k and min-p leave out"
        assert self.p_value(seen, expected) > 0.001

    def exact(self, tiny: Path, min_p: float) -> dict[tuple[int, ...], float]:
        """Probability of every sequence that sampling can draw."""
        model = LlamaForCausalLM.from_pretrained(tiny, dtype=torch.float32)
        found: dict[tuple[int, ...], float] = {(): 1.0}
        for _ in range(self.LENGTH):
            longer = {}
            for sequence, probability in found.items():
                with torch.no_grad():
                    logits = model(torch.tensor([[*self.PROMPT, *sequence]])).logits[0, -1]
                best = logits.double().softmax(-1).topk(self.TOP_K)
                kept = best.values * (best.values >= min_p * best.values[0])
                shares = kept / kept.sum()
                for token, share in zip(best.indices.tolist(), shares.tolist(), strict=True):
                    if share > 0:
                        longer[(*sequence, token)] = probability * share
            found = longer
        return found

    def p_value(self, seen: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
        """Of the chi-square test; outcomes expected less than 8 times are one class."""
        total = seen.total()
        likely = [outcome for outcome, share in expected.items() if share * total >= 8]
        counts = [seen[outcome] for outcome in likely]
        means = [expected[outcome] * total for outcome in likely]
        if len(likely) < len(expected):
            counts.append(total - sum(counts))
            means.append(total - sum(means))
        return float(stats.chisquare(counts, means).pvalue)


class TestRepositories:
    """Output is forced by a grammar, so that a random model writes what was planted."""

    LETTERS = ";".join(f"{word}={word[::-1]}" for word in ("qzwx", "vkjp", "hxqz", "wvkq", "zjhx", "pqvw", "xkzj"))
    DIGITS = ",".join(f"{number}<{number * 7}" for number in range(123456, 123500, 6))
    """The two texts have no token in common: whatever is accepted came from the index of the text that is written.

    Drafted and refused may be what the named index says behind a wrong guess of the head.
    """

    @pytest.fixture(scope="class")
    def stores(self, tiny: Path, index_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
        stores = {}
        for name, text in (("letters", self.LETTERS), ("digits", self.DIGITS)):
            repository = tmp_path_factory.mktemp(name)
            (repository / "planted.txt").write_text(text)
            stores[name] = self.index(repository, tiny, index_directory)
        return stores

    @staticmethod
    def index(repository: Path, tiny: Path, index_directory: Path) -> Path:
        options = BuildOptions(index_directory, 1_000_000)
        return build_index(repository, IndexTokenizer(str(tiny), index_directory), options).store

    @staticmethod
    def write(server: Server, text: str, store: str, **fields: Any) -> dict[str, Any]:
        sampling = {
            "temperature": 0,
            "max_new_tokens": 200,
            "regex": re.escape(text),
            "custom_params": ours(store=store, **fields),
        }
        answer = server.generate(text="Write it.", sampling_params=sampling)
        assert answer["text"] == text
        return receipt_of(answer)

    def name(self, store: Path, index_directory: Path) -> str:
        return store.relative_to(index_directory).as_posix()

    def test_each_request_drafts_from_its_own_repository_alone(
        self, server: Server, stores: dict[str, Path], index_directory: Path
    ) -> None:
        names = {key: self.name(store, index_directory) for key, store in stores.items()}
        jobs = [(text, store) for text in (self.LETTERS, self.DIGITS) for store in names.values()] * 3
        with ThreadPoolExecutor(2) as pool:
            receipts = list(pool.map(lambda job: self.write(server, *job), jobs))
        for (text, store), receipt in zip(jobs, receipts, strict=True):
            own = (text == self.LETTERS) == (store == names["letters"])
            assert receipt["warnings"] == []
            if own:
                assert receipt["accepted"]["repository"] > receipt["completion_tokens"] / 3
            else:
                assert "repository" not in receipt["accepted"], "text of another repository was drafted"

    def test_new_generations_are_followed(
        self, server: Server, tiny: Path, index_directory: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "a.txt").write_text(self.DIGITS)
        name = self.name(self.index(tmp_path, tiny, index_directory), index_directory)
        assert "repository" not in self.write(server, self.LETTERS, name)["accepted"]
        (tmp_path / "b.txt").write_text(self.LETTERS)
        self.index(tmp_path, tiny, index_directory)
        time.sleep(1.5)
        receipt = self.write(server, self.LETTERS, name, generation=2)
        assert receipt["accepted"]["repository"] > 0
        assert receipt["warnings"] == []
        assert "not 99" in self.write(server, self.LETTERS, name, generation=99)["warnings"][0]

    def test_damage_and_mistakes_cost_drafts_alone(
        self, server: Server, tiny: Path, index_directory: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "a.txt").write_text(self.LETTERS)
        store = self.index(tmp_path, tiny, index_directory)
        name = self.name(store, index_directory)
        assert self.write(server, self.LETTERS, name)["accepted"]["repository"] > 0
        for segment in store.glob("*.segment"):
            with segment.open("r+b") as file:
                file.truncate(64)
        assert self.write(server, self.LETTERS, name)["completion_tokens"] > 0
        for file in store.iterdir():
            file.unlink()
        assert self.write(server, self.LETTERS, name)["completion_tokens"] > 0
        unknown = self.write(server, self.LETTERS, "nothing-0123456789abcdef/0123456789abcdef")
        assert "index is not used" in unknown["warnings"][0]
        other = store.with_name("f" * 16)
        other.mkdir()
        assert "index is not used" in self.write(server, self.LETTERS, self.name(other, index_directory))["warnings"][0]


MALFORMED: list[Any] = [
    {},
    {PARAMS_KEY: None},
    {PARAMS_KEY: []},
    {PARAMS_KEY: "x"},
    {PARAMS_KEY: {"store": 5, "generation": "x", "edited_path": [], "prediction": "text", "speculation": "no"}},
    {PARAMS_KEY: {"store": "../../../etc/passwd", "prediction": [-1]}},
    {PARAMS_KEY: {"prediction": [10**9]}},
    {PARAMS_KEY: {"prediction": [1, None, {}]}},
    {PARAMS_KEY: {"prediction": list(range(100)) * 300}},
    {PARAMS_KEY: {"edited_path": "\0" * 100, "generation": -(2**62)}},
    {"other": {"deeply": [{"nested": [1]}] * 50}},
]


@pytest.mark.parametrize("custom", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_parameters_change_nothing(server: Server, custom: Any) -> None:
    sampling = {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}
    plain = server.generate(text="def f(", sampling_params=sampling | {"custom_params": ours(speculation=False)})
    answer = server.generate(text="def f(", sampling_params=sampling | {"custom_params": custom})
    assert answer["text"] == plain["text"]
    assert receipt_of(plain)["drafted"] == {}
    assert receipt_of(plain)["verify_steps"] == 23


def test_receipts_wait_for_whoever_asks(server: Server) -> None:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 8,
        "stream": True,
        "rid": "receipt-test",
    }
    with server.http.stream("POST", "/v1/chat/completions", json=body) as response:
        assert "data: [DONE]" in response.read().decode()
    receipt = server.http.get("/agentspec/receipts/receipt-test").json()
    assert 1 <= receipt["completion_tokens"] <= 8
    assert server.http.get("/agentspec/receipts/receipt-test").status_code == 404


def test_metrics_are_exported(server: Server) -> None:
    names = ("drafted_nodes", "accepted_nodes", "verify_steps", "eagle_skipped", "generated_tokens")
    before = {name: server.metric(f"agentspec_{name}_total") for name in names}
    assert before["drafted_nodes"] >= before["accepted_nodes"] > 0
    answer = server.generate(text="def f(", sampling_params={"max_new_tokens": 16, "ignore_eos": True})
    steps = receipt_of(answer)["verify_steps"]
    assert server.metric("agentspec_verify_steps_total") == before["verify_steps"] + steps


class TestAborts:
    def long(self, rid: str, tokens: int, **extra: Any) -> dict[str, Any]:
        params = {"temperature": 1.0, "max_new_tokens": tokens, "ignore_eos": True, "custom_params": ours()}
        return {"rid": rid, "text": f"class Node{rid}:", "sampling_params": params, "stream": True, **extra}

    def play(self, server: Server, number: int) -> str:
        """One request with a fate drawn by lot."""
        lot = random.Random(number)
        body = self.long(f"play-{number}", lot.choice([1, 3, 20, 60, 400]))
        fate = lot.choice(["finish", "abort", "abort", "disconnect", "abort at once"])
        if fate == "finish":
            body["sampling_params"]["max_new_tokens"] = min(60, body["sampling_params"]["max_new_tokens"])
        patience = lot.random() * 0.5
        started = time.monotonic()
        with (
            httpx.Client(base_url=server.url, timeout=120) as http,
            http.stream("POST", "/generate", json=body) as answer,
        ):
            if fate == "abort at once":
                http.post("/abort_request", json={"rid": body["rid"]})
            for line in answer.iter_lines():
                if fate == "disconnect" and time.monotonic() - started > patience:
                    break
                if fate == "abort" and time.monotonic() - started > patience:
                    server.http.post("/abort_request", json={"rid": body["rid"]})
                    fate = "aborted"
                if line.startswith("data: {") and json.loads(line[6:])["meta_info"]["finish_reason"]:
                    break
        if fate == "disconnect":
            server.http.post("/abort_request", json={"rid": body["rid"]})
        return fate

    def test_two_hundred_interleavings_leak_nothing(self, server: Server) -> None:
        with ThreadPoolExecutor(12) as pool:
            fates = Counter(pool.map(lambda number: self.play(server, number), range(200)))
        assert len(fates) >= 4, fates
        self.settle(server)
        assert server.http.post("/flush_cache").status_code == 200
        after = server.generate(text="def f(", sampling_params={"max_new_tokens": 8, "ignore_eos": True})
        assert after["meta_info"]["completion_tokens"] == 8
        leaks = [line for line in server.process.lines if "leak" in line.lower()]
        assert leaks == [], "SGLang's idle check found slots that nobody holds"

    @staticmethod
    def settle(server: Server) -> None:
        """Wait until nothing runs; SGLang then checks its pools by itself."""
        for _ in itertools.count():
            if server.metric("sglang:num_running_reqs") == 0 and server.metric("sglang:num_queue_reqs") == 0:
                break
            time.sleep(0.3)
        time.sleep(3)
