"""The scheduler step by step, without threads."""

import random
from collections import defaultdict

import pytest
import torch

from agentspec.engines.local.cache_store import CacheStore
from agentspec.engines.local.events import Failure
from agentspec.engines.local.grammar import Grammars
from agentspec.engines.local.kv_cache import KVPool
from agentspec.engines.local.limits import Limits
from agentspec.engines.local.preparation import Preparation
from agentspec.engines.local.prompts import CHUNK_MULTIPLE, PASS_SECONDS_SHARED
from agentspec.engines.local.request import Phase
from agentspec.engines.local.scheduler import Scheduler
from agentspec.engines.local.speculation import StepClock
from tests.engines.local.running import ask
from tests.engines.local.scripted_drafters import ScriptedDrafter, noisy_oracle, tree_from_edges


class WatchedModel:
    """The tiny model, with a look at each pass and failures on demand."""

    def __init__(self, model):
        self._model = model
        self.passes = []
        self.fails = lambda inputs: False

    def __getattr__(self, name):
        return getattr(self._model, name)

    def forward(self, inputs):
        self.passes.append([len(one.tokens) for one in inputs])
        if self.fails(inputs):
            raise RuntimeError("out of memory")
        return self._model.forward(inputs)


class CostPerToken:
    """A target that computes 2,000 tokens a second."""

    def seconds(self, rows, context):
        return 0.0005 * rows


class Bench:
    """A scheduler with its parts."""

    def __init__(self, target, drafter=None, *, slots=20_000, max_running=4, retained=2, processors=None):
        self.model = WatchedModel(target.model)
        self.pool = KVPool(target.model.layout, slots)
        caches = CacheStore(self.pool, retained)
        limits = Limits(max_running, max_nodes=16, max_depth=16, min_path_prob=0.01)
        self.preparation = Preparation(
            tokenizer=target.tokenizer,
            vocab_size=target.model.vocab_size,
            context_length=target.model.context_length,
            end_tokens=target.model.eos_token_ids,
            limits=limits,
            caches=caches,
            speculation=drafter is not None,
            grammars=Grammars(target.tokenizer.wrapped, target.model.vocab_size, target.model.eos_token_ids),
            processors=processors,
        )
        self.scheduler = Scheduler(self.model, caches, drafter, StepClock(CostPerToken()), limits)
        self.caches = caches
        self.chunks = defaultdict(list)
        self.errors = {}

    def submit(self, request):
        generation = self.preparation.prepare(request)
        self.scheduler.submit(generation)
        return generation

    def note(self, events):
        for event in events:
            if isinstance(event, Failure):
                self.errors[event.generation.id] = event.error
            else:
                self.chunks[event.generation.id].append(event.chunk)

    def step(self):
        self.note(self.scheduler.step())

    def abort(self, generation):
        self.note(self.scheduler.abort(generation))

    def finish(self):
        for _ in range(5000):
            if not self.scheduler.running and not self.scheduler.waiting:
                return
            self.step()
        raise AssertionError("requests are left that make no progress")

    def tokens(self, name, index=0):
        return [token for chunk in self.chunks[name] if chunk.index == index for token in chunk.token_ids]

    def reasons(self, name):
        return [chunk.finish_reason for chunk in self.chunks[name] if chunk.finish_reason]


def long_prompt(length, first=3):
    return (first, *(10 + place % 500 for place in range(length - 1)))


def test_plain_decoding_pads_nothing(tiny):
    bench = Bench(tiny)
    bench.submit(ask(id="a", prompt=long_prompt(10), max_tokens=5))
    bench.finish()
    assert bench.model.passes == [[10], [1], [1], [1], [1]]


def test_trees_of_different_sizes_share_one_pass(tiny):
    sizes = iter([3, 0, 5, 2] * 10)

    def propose(written, budget):
        return tree_from_edges([(place - 1, 1, 0) for place in range(min(next(sizes), budget.max_depth))])

    bench = Bench(tiny, ScriptedDrafter(propose))
    for name in ("a", "b"):
        bench.submit(ask(id=name, prompt=long_prompt(20, first=ord(name)), max_tokens=20))
    bench.finish()
    assert [4, 1] in bench.model.passes
    assert [6, 3] in bench.model.passes


def test_a_long_prompt_does_not_stall_others(tiny):
    bench = Bench(tiny)
    bench.submit(ask(id="short", prompt=long_prompt(10), max_tokens=8))
    bench.step()
    bench.submit(ask(id="long", prompt=long_prompt(400), max_tokens=4))
    before = len(bench.tokens("short"))
    for step in range(1, 4):
        bench.step()
        assert len(bench.tokens("short")) == before + step
    assert max(sum(one) for one in bench.model.passes) <= PASS_SECONDS_SHARED / 0.0005 + 1
    bench.finish()
    assert len(bench.tokens("long")) == 4


def test_chunks_end_at_round_positions(tiny):
    """Else the next chunks, and reused prefixes, would begin anywhere, and be computed in odd sizes."""
    bench = Bench(tiny)
    for number, length in enumerate((200, 201, 330)):
        bench.submit(ask(id=str(number), prompt=long_prompt(length, first=number + 3), max_tokens=3))
    while bench.scheduler.running or bench.scheduler.waiting:
        bench.step()
        for generation in bench.scheduler._running:
            if generation.phase is Phase.PREFILL:
                assert generation.choices[0].cache.length % CHUNK_MULTIPLE == 0


def test_prompts_that_begin_alike_are_computed_once(tiny):
    """A burst over one long document: the first computes it, the others wait and copy."""
    bench = Bench(tiny)
    document = long_prompt(300)
    for number in range(4):
        bench.submit(ask(id=str(number), prompt=(*document, 7, 20 + number), max_tokens=1))
    other = bench.submit(ask(id="other", prompt=long_prompt(100, first=9), max_tokens=2))
    bench.finish()
    assert sum(sum(one) for one in bench.model.passes) == 302 + 3 + 100 + 1
    assert [bench.chunks[str(number)][-1].receipt.cached_tokens for number in range(4)] == [0, 301, 301, 301]
    assert other.cached_tokens == 0


def test_who_waits_for_an_aborted_prompt_computes_it(tiny):
    bench = Bench(tiny)
    first = bench.submit(ask(id="a", prompt=long_prompt(300), max_tokens=1))
    bench.submit(ask(id="b", prompt=(*long_prompt(290), 5), max_tokens=1))
    bench.step()
    bench.abort(first)
    bench.finish()
    assert len(bench.tokens("b")) == 1
    assert sum(sum(one) for one in bench.model.passes) == 291


def test_prompts_take_turns(tiny):
    """A short prompt behind a long one does not wait for all of it."""
    bench = Bench(tiny)
    bench.submit(ask(id="busy", prompt=long_prompt(5), max_tokens=40))
    bench.step()
    bench.submit(ask(id="long", prompt=long_prompt(450, first=4), max_tokens=2))
    bench.submit(ask(id="short", prompt=long_prompt(60, first=5), max_tokens=2))
    for _ in range(3):
        bench.step()
    assert bench.tokens("short")
    assert not bench.tokens("long")
    bench.finish()


def test_chunked_prefill_and_batching_change_nothing(tiny):
    prompts = {name: long_prompt(length, first=length) for name, length in (("a", 300), ("b", 129), ("c", 7))}
    requests = [ask(id=name, prompt=prompt, temperature=1.0, seed=5, max_tokens=20) for name, prompt in prompts.items()]
    alone = {}
    for request in requests:
        bench = Bench(tiny)
        bench.submit(request)
        bench.finish()
        alone[request.id] = bench.tokens(request.id)
    together = Bench(tiny)
    for request in requests:
        together.submit(request)
        together.step()
    together.finish()
    assert {name: together.tokens(name) for name in prompts} == alone


def test_choices_share_the_prompt(tiny):
    bench = Bench(tiny)
    bench.submit(ask(id="a", n=3, prompt=long_prompt(50), temperature=1.0, seed=1, max_tokens=6))
    bench.finish()
    assert bench.model.passes[0] == [50]
    assert all(one == [1] * len(one) for one in bench.model.passes[1:])
    assert [len(bench.tokens("a", index)) for index in range(3)] == [6, 6, 6]
    single = Bench(tiny)
    single.submit(ask(id="a", prompt=long_prompt(50), temperature=1.0, seed=3, max_tokens=6))
    single.finish()
    assert bench.tokens("a", 2) == single.tokens("a")


def test_first_come_first_served_within_bounds(tiny):
    bench = Bench(tiny, max_running=2)
    for name in "abcde":
        bench.submit(ask(id=name, prompt=long_prompt(10, first=ord(name)), max_tokens=4))
    started = []
    while bench.scheduler.running or bench.scheduler.waiting:
        bench.step()
        assert bench.scheduler.running <= 2
        started += [name for name in bench.chunks if name not in started]
    assert started == list("abcde")


def test_a_request_waits_for_memory_and_then_runs(tiny):
    bench = Bench(tiny, slots=100)
    first = bench.submit(ask(id="a", prompt=long_prompt(40), max_tokens=20))
    second = bench.submit(ask(id="b", prompt=long_prompt(40, first=9), max_tokens=20))
    bench.step()
    assert (first.phase, second.phase) == (Phase.DECODE, Phase.WAITING)
    bench.finish()
    assert len(bench.tokens("b")) == 20
    assert bench.pool.used <= 100


def test_a_request_that_never_fits_is_an_error_and_no_standstill(tiny):
    bench = Bench(tiny, slots=100)
    generation = Bench(tiny).preparation.prepare(ask(id="a", prompt=long_prompt(90), max_tokens=90))
    bench.scheduler.submit(generation)
    bench.submit(ask(id="b", prompt=long_prompt(10), max_tokens=2))
    bench.finish()
    assert "no key/value memory" in str(bench.errors["a"])
    assert len(bench.tokens("b")) == 2


def test_cached_tokens_are_those_not_computed_again(tiny):
    bench = Bench(tiny)
    bench.submit(ask(id="a", prompt=long_prompt(100), max_tokens=4))
    bench.finish()
    bench.submit(ask(id="b", prompt=(*long_prompt(90), 600, 601), max_tokens=4))
    bench.model.passes.clear()
    bench.finish()
    receipt = bench.chunks["b"][-1].receipt
    assert receipt.cached_tokens == 90
    assert bench.model.passes[0] == [2]


def test_receipts_count_by_source(tiny):
    plain = Bench(tiny)
    plain.submit(ask(id="a", max_tokens=9))
    plain.finish()
    truth = plain.tokens("a")

    def propose(written, budget):
        rest = truth[len(written) :]
        wrong = (rest[0] + 1) % tiny.model.vocab_size
        edges = [(-1, wrong, 1), (-1, rest[0], 0)]
        return tree_from_edges([*edges, (1, rest[1], 2)] if budget.max_depth > 1 else edges)

    bench = Bench(tiny, ScriptedDrafter(propose))
    bench.submit(ask(id="a", max_tokens=9))
    bench.finish()
    assert bench.tokens("a") == truth
    receipt = bench.chunks["a"][-1].receipt
    # 1 token from the prompt's pass, then 3 + 3 of two accepted and a bonus token, and 2 of one accepted and a bonus.
    assert receipt.verify_steps == 3
    assert receipt.drafted == {"repository": 3, "request": 3, "prediction": 2}
    assert receipt.accepted == {"request": 3, "prediction": 2}
    assert receipt.completion_tokens == 9
    assert receipt.speculation


def test_drafts_never_go_past_the_last_token(tiny):
    depths = []

    def propose(written, budget):
        depths.append(budget.max_depth)
        return tree_from_edges([(place - 1, 1, 0) for place in range(budget.max_depth)])

    bench = Bench(tiny, ScriptedDrafter(propose))
    bench.submit(ask(id="a", max_tokens=6, logit_bias={1: 100.0}))
    bench.finish()
    assert depths == [4]  # one token came from the prompt's pass: four drafted ones and a bonus token are left
    assert bench.tokens("a") == [1] * 6


def test_a_failing_drafter_leaves_a_plain_request(tiny):
    def propose(written, budget):
        raise RuntimeError("out of ideas")

    bench = Bench(tiny, ScriptedDrafter(propose))
    bench.submit(ask(id="a", max_tokens=5))
    bench.finish()
    receipt = bench.chunks["a"][-1].receipt
    assert len(bench.tokens("a")) == 5
    assert not receipt.speculation
    assert "out of ideas" in receipt.warnings[0]


class Exploding:
    """A processor that fails at its third token."""

    follows_path = True

    def __init__(self):
        self.seen = 0

    def apply(self, logits):
        pass

    def advance(self, token):
        self.seen += 1
        if self.seen == 3:
            raise ValueError("grammar lost")


def test_a_failing_processor_ends_its_request_only(tiny):
    bench = Bench(tiny, processors=lambda request, tokenizer: [Exploding()] if request.id == "bad" else [])
    for name in ("good", "bad", "fine"):
        bench.submit(ask(id=name, prompt=long_prompt(20, first=ord(name[0])), max_tokens=6))
    bench.finish()
    assert "grammar lost" in str(bench.errors["bad"])
    assert len(bench.tokens("good")) == len(bench.tokens("fine")) == 6
    bench.caches.clear()
    assert bench.pool.used == 0


def test_a_pass_that_fails_for_one_sequence_ends_that_one_only(tiny):
    bench = Bench(tiny)
    for name in ("good", "bad", "fine"):
        bench.submit(ask(id=name, prompt=long_prompt(20, first=ord(name[0])), max_tokens=6))
    for _ in range(4):
        bench.step()
    [bad] = [one for one in bench.scheduler._running if one.id == "bad"]
    cache = bad.choices[0].cache
    bench.model.fails = lambda inputs: any(one.cache is cache for one in inputs)
    bench.finish()
    assert "out of memory" in str(bench.errors["bad"])
    alone = Bench(tiny)
    alone.submit(ask(id="good", prompt=long_prompt(20, first=ord("g")), max_tokens=6))
    alone.finish()
    assert bench.tokens("good") == alone.tokens("good")
    assert len(bench.tokens("fine")) == 6


class Unfollowable:
    """A processor that needs to see each token before the next is drawn, whatever that means to it."""

    follows_path = False

    def apply(self, logits):
        pass

    def advance(self, token):
        pass


def test_what_cannot_follow_a_path_is_decoded_plainly(tiny):
    drafter = ScriptedDrafter(lambda written, budget: tree_from_edges([(-1, 1, 0)]))
    bench = Bench(tiny, drafter, processors=lambda request, tokenizer: [Unfollowable()])
    bench.submit(ask(id="a", max_tokens=5))
    bench.finish()
    receipt = bench.chunks["a"][-1].receipt
    assert not receipt.speculation
    assert receipt.drafted == {}
    assert drafter.requests == []
    assert "cannot follow a draft" in receipt.warnings[0]


def test_abort_keeps_what_was_computed_for_the_next_request(tiny):
    bench = Bench(tiny)
    generation = bench.submit(ask(id="a", prompt=long_prompt(300), max_tokens=50))
    for _ in range(3):
        bench.step()
    assert bench.tokens("a")
    bench.abort(generation)
    assert bench.reasons("a") == ["abort"]
    bench.submit(ask(id="b", prompt=long_prompt(300), max_tokens=2))
    bench.finish()
    assert bench.chunks["b"][-1].receipt.cached_tokens == 299


@pytest.mark.parametrize("seed", range(100))
def test_interleavings_lose_nothing(tiny, seed):
    """Random arrivals, aborts, failures and memory pressure: every request ends once, and no KV slot leaks."""
    rng = random.Random(seed)
    bench = Bench(tiny, noisy_oracle([], tiny.model.vocab_size, seed), slots=rng.choice([400, 900, 5000]))
    live, expected = {}, {}
    for number in range(rng.randint(3, 10)):
        name = f"r{number}"
        request = ask(
            id=name,
            prompt=long_prompt(rng.choice([2, 30, 150]), first=rng.choice([5, 6])),
            n=rng.choice([1, 1, 2]),
            max_tokens=rng.randint(1, 12),
            temperature=1.0,
            seed=number,
        )
        live[name], expected[name] = bench.submit(request), request
        for _ in range(rng.randint(0, 4)):
            bench.step()
        if rng.random() < 0.3:
            bench.abort(live[rng.choice(list(live))])
        if rng.random() < 0.1:
            failures = iter([True])
            bench.model.fails = lambda inputs, failures=failures: next(failures, False)
    bench.finish()
    for name, request in expected.items():
        if name in bench.errors:
            assert bench.reasons(name) != ["stop"] * request.n
            continue
        assert len(bench.reasons(name)) == request.n
        for index in range(request.n):
            assert len(bench.tokens(name, index)) <= request.sampling.max_tokens
    assert all(generation.phase is Phase.DONE for generation in live.values())
    assert all(choice.cache is None for generation in live.values() for choice in generation.choices)
    bench.caches.clear()
    assert bench.pool.used == 0


def test_penalties_of_a_choice_do_not_leak_into_another(tiny):
    bench = Bench(tiny)
    bench.submit(ask(id="a", n=2, presence_penalty=2.0, max_tokens=10))
    bench.finish()
    assert bench.tokens("a", 0) == bench.tokens("a", 1)


def test_logits_of_the_pass_are_left_to_their_sequence(tiny):
    """Rows are cut from one tensor; a processor that wrote into it would change its neighbour's draw."""
    bench = Bench(tiny)
    for name in ("a", "b"):
        bias = {7: 100.0} if name == "a" else {}
        bench.submit(ask(id=name, prompt=long_prompt(12), logit_bias=bias, max_tokens=4))
    bench.finish()
    assert bench.tokens("a") == [7] * 4
    assert 7 not in bench.tokens("b")
    assert torch.is_inference_mode_enabled() is False
