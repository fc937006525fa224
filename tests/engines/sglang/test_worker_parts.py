"""The parts of the worker that need no SGLang."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.drafters.base import Budget, DraftRequest
from agentspec.drafters.tree import DraftTree, Source
from agentspec.engines.sglang import receipts
from agentspec.engines.sglang._native import pack
from agentspec.engines.sglang.binding import PARAMS_KEY, RequestBinding, parse
from agentspec.engines.sglang.cost import VerifyCost
from agentspec.engines.sglang.drafts import DraftBook, Round, confidence
from agentspec.engines.sglang.eagle_value import EagleValue
from agentspec.engines.sglang.penalties import PathPenalties, PenaltyRule
from agentspec.engines.sglang.verdict import Stopwatch, Verdict
from agentspec.engines.sglang.widths import VerifyWidths

VOCABULARY = 100
STORE = "repo-0123456789abcdef/0123456789abcdef"


def tree_of(tokens: list[int], parents: list[int], source: Source = Source.REQUEST, prob: float = 0.5) -> DraftTree:
    return DraftTree(
        np.array(tokens, np.int32),
        np.array(parents, np.int32),
        np.full(len(tokens), prob, np.float32),
        np.full(len(tokens), source, np.uint8),
    )


def random_tree(rng: np.random.Generator, nodes: int) -> DraftTree:
    return tree_of(rng.permutation(VOCABULARY)[:nodes].tolist(), [int(rng.integers(-1, node)) for node in range(nodes)])


class TestBinding:
    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text() | st.floats(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        )
    )
    @settings(max_examples=200)
    def test_nothing_that_a_client_sends_raises(self, anything: object) -> None:
        parse(anything, VOCABULARY)
        parse({PARAMS_KEY: anything}, VOCABULARY)
        for field in ("store", "generation", "edited_path", "prediction", "speculation"):
            binding = parse({PARAMS_KEY: {field: anything}}, VOCABULARY)
            assert isinstance(binding.speculation, bool)

    def test_round_trip(self) -> None:
        binding = RequestBinding(STORE, 3, "a/b.py", np.array([1, 2], np.int32), False)
        again = parse({PARAMS_KEY: binding.as_params()}, VOCABULARY)
        assert again.warnings == ()
        assert (again.store, again.generation, again.edited_path, again.speculation) == (STORE, 3, "a/b.py", False)
        assert again.prediction is not None
        assert again.prediction.tolist() == [1, 2]

    @pytest.mark.parametrize("store", ["../etc/0123456789abcdef", "/etc", "a/b/0123456789abcdef", "x/short", "..", ""])
    def test_a_store_outside_the_index_is_refused(self, store: str) -> None:
        binding = parse({PARAMS_KEY: {"store": store}}, VOCABULARY)
        assert binding.store is None
        assert "names no index store" in binding.warnings[0]

    @pytest.mark.parametrize("tokens", [[1, VOCABULARY], [-1], [True], ["1"], "text", {"a": 1}, [1.5]])
    def test_a_bad_prediction_is_dropped_with_a_warning(self, tokens: object) -> None:
        binding = parse({PARAMS_KEY: {"prediction": tokens}}, VOCABULARY)
        assert binding.prediction is None
        assert "prediction" in binding.warnings[0]


class TestPack:
    @given(st.integers(0, 2**31), st.integers(1, 4), st.integers(0, 4))
    @settings(max_examples=80, deadline=None)
    def test_like_the_trees_themselves(self, seed: int, batch: int, padding: int) -> None:
        rng = np.random.default_rng(seed)
        trees = [random_tree(rng, int(rng.integers(0, 12))) for _ in range(batch)]
        width = max(map(len, trees)) + 1 + padding
        roots, lengths = rng.integers(0, VOCABULARY, batch), rng.integers(0, 1000, batch)
        tokens, positions, mask, child, sibling = pack(
            [tree.tokens for tree in trees], [tree.parents for tree in trees], roots, lengths, width
        )
        for b, tree in enumerate(trees):
            nodes = len(tree) + 1
            first, following = tree.links()
            assert tokens[b, :nodes].tolist() == [roots[b], *tree.tokens.tolist()]
            assert positions[b, :nodes].tolist() == [lengths[b], *(lengths[b] + tree.depths()).tolist()]
            assert mask[b, 1:nodes, 1:nodes].tolist() == tree.ancestor_mask().tolist()
            assert mask[b, :nodes, 0].all()
            assert child[b, :nodes].tolist() == [node + 1 if node >= 0 else -1 for node in first.tolist()]
            assert sibling[b, :nodes].tolist() == [node + 1 if node >= 0 else -1 for node in following.tolist()]
            reachable = {*child[b].tolist(), *sibling[b].tolist()}
            assert not reachable & set(range(nodes, width)), "a padding node could be accepted"
            assert (mask[b, nodes:] == np.eye(width, dtype=bool)[nodes:]).all()

    @pytest.mark.parametrize(
        ("tokens", "parents", "width", "message"),
        [
            ([1, 2], [-1, 1], 4, "node 1 has parent 1"),
            ([1], [-2], 4, "has parent -2"),
            ([-1], [-1], 4, "has no token"),
            ([1, 2], [-1, 0], 2, "do not fit a width of 2"),
            ([1], [-1, 0], 4, "differ in length"),
        ],
    )
    def test_bad_trees_are_refused(self, tokens: list[int], parents: list[int], width: int, message: str) -> None:
        arrays = [np.array(tokens, np.int32)], [np.array(parents, np.int32)]
        with pytest.raises(ValueError, match=message):
            pack(*arrays, np.array([0]), np.array([0]), width)


class TestPenalties:
    @given(st.integers(0, 2**31))
    @settings(max_examples=40, deadline=None)
    def test_every_node_is_penalised_like_plain_decoding_in_its_place(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        rule = PenaltyRule(
            *rng.choice([0.0, 0.3, 0.7], 2).tolist(), float(rng.choice([1.0, 1.2])), int(rng.integers(0, 9)), (3, 4)
        )
        output = rng.integers(0, VOCABULARY, 6).tolist()
        tree = tree_of(rng.integers(0, VOCABULARY, 7).tolist(), random_tree(rng, 7).parents.tolist())
        tokens, positions, mask, _, _ = map(
            torch.from_numpy, pack([tree.tokens], [tree.parents], np.array([output[-1]]), np.array([50]), 8)
        )
        logits = torch.from_numpy(rng.normal(size=(8, VOCABULARY))).float()
        found = logits.clone()
        penalties = PathPenalties(rule, VOCABULARY, "cpu")
        penalties.catch_up(output[:2])
        penalties.catch_up(output)
        penalties.apply(found, tokens[0], mask[0], positions[0] - 50)
        for node in range(8):
            path = [int(tokens[0, other]) for other in range(1, 8) if mask[0, node, other]]
            expected = self.plain(logits[node].tolist(), output + path, rule)
            torch.testing.assert_close(found[node], torch.tensor(expected), atol=1e-5, rtol=1e-5)

    @staticmethod
    def plain(logits: list[float], generated: list[int], rule: PenaltyRule) -> list[float]:
        result = []
        for token, value in enumerate(logits):
            count = generated.count(token)
            logit = value - rule.frequency * count - rule.presence * (count > 0)
            if len(generated) < rule.min_new_tokens and token in rule.stop_tokens:
                logit = -math.inf
            scale = rule.repetition if count else 1.0
            result.append(logit * scale if logit < 0 else logit / scale)
        return result


class TestWidths:
    def test_every_width_without_graphs(self) -> None:
        widths = VerifyWidths(5)
        assert [widths.of(nodes) for nodes in range(5)] == [1, 2, 3, 4, 5]

    def test_captured_widths(self) -> None:
        widths = VerifyWidths(20, [1, 8, 64])
        assert widths.widths == (1, 8, 20)
        assert [widths.of(nodes) for nodes in (0, 1, 7, 8, 19)] == [1, 8, 8, 20, 20]
        assert len(widths.of_nodes()) == 20


class TestCost:
    def test_it_finds_the_line(self) -> None:
        rng = np.random.default_rng(0)
        cost = VerifyCost()
        for _ in range(400):
            tokens = int(rng.integers(1, 200))
            cost.observe(tokens, (0.02 + 0.0005 * tokens) * rng.normal(1, 0.03))
        assert cost.seconds(1) == pytest.approx(0.0205, rel=0.1)
        assert cost.seconds(150) == pytest.approx(0.095, rel=0.1)

    def test_a_hiccup_changes_nothing(self) -> None:
        cost = VerifyCost()
        for tokens in [1, 5, 9, 20] * 20:
            cost.observe(tokens, 0.01 + 0.001 * tokens)
        before = cost.seconds(10)
        cost.observe(10, 30.0)
        assert cost.seconds(10) == before

    def test_the_curve_prices_padding(self) -> None:
        curve = VerifyCost(0.1).curve(VerifyWidths(9, [1, 4]).of_nodes(), 2)
        assert curve.dtype == np.float32
        assert curve.tolist() == pytest.approx([1.2, 1.8, 1.8, 1.8, 2.8, 2.8, 2.8, 2.8, 2.8])


class TestEagleValue:
    def test_a_confident_batch_skips_the_draft(self) -> None:
        value = self.measured(accepted=2)
        assert not value.worth([0.01, 0.0], 2)
        assert value.worth([0.9, 0.8], 2)

    def test_one_unsure_request_may_be_worth_it(self) -> None:
        assert self.measured(accepted=3).worth([0.0, 1.0], 2)

    def test_a_useless_head_is_asked_now_and_then(self) -> None:
        value = self.measured(accepted=0)
        asked = [value.worth([1.0], 1) for _ in range(31)]
        assert sum(asked) >= 1
        assert not asked[0]

    @staticmethod
    def measured(accepted: int) -> EagleValue:
        value = EagleValue()
        for _ in range(100):
            value.drafted(0.01)
            value.verified(0.05, 2.0, [accepted, accepted])
        return value


class Session:
    """Proposes what it is told; remembers what was committed."""

    def __init__(self, request: DraftRequest, tree: DraftTree | Exception) -> None:
        self.request, self.tree, self.committed = request, tree, request.prompt.tolist()

    def propose(self, _budget: Budget, extra: DraftTree | None = None) -> DraftTree:
        if isinstance(self.tree, Exception):
            raise self.tree
        return self.tree if extra is None else extra

    def commit(self, tokens: np.ndarray) -> None:
        self.committed += tokens.tolist()


class Request:
    """As much of SGLang's request as the worker reads."""

    def __init__(self, prompt: list[int], **custom: Any) -> None:
        self.origin_input_ids, self.output_ids = prompt, []
        self.custom_logit_processor = None
        self.sampling_params = SimpleNamespace(custom_params={PARAMS_KEY: custom})
        self.spec_verify_ct = 0

    @property
    def output_ids_through_stop(self) -> list[int]:
        return self.output_ids


class TestDraftBook:
    def make(self, tree: DraftTree | Exception, codec: Any = None) -> tuple[DraftBook, list[Session]]:
        begun: list[Session] = []

        class Drafter:
            def begin(self, request: DraftRequest) -> Session:
                begun.append(Session(request, tree))
                return begun[-1]

        return DraftBook(Drafter(), None, VOCABULARY, codec), begun

    def test_the_vocabulary_is_looked_at_before_the_first_request(self) -> None:
        codec = SimpleNamespace(encode=lambda text: [7] * ("```" in text))
        book, begun = self.make(tree_of([1], [-1]), codec)
        book.warm_up()
        [session] = begun
        assert session.committed == [7, VOCABULARY - 1]
        assert session.request.codec is codec

    def test_a_drafter_that_cannot_warm_up_does_not_keep_the_server_from_starting(self) -> None:
        class Drafter:
            def begin(self, request: DraftRequest) -> Session:
                raise MemoryError

        DraftBook(Drafter(), None, VOCABULARY, SimpleNamespace(encode=lambda text: [7])).warm_up()
        DraftBook(None, None, VOCABULARY, None).warm_up()

    def test_the_session_knows_every_token_once_though_outputs_lag(self) -> None:
        book, begun = self.make(tree_of([1], [-1]))
        request = Request([1, 2, 3])
        active = book.follow(request, 3, 50)
        book.commit(active, [51, 52])
        assert book.follow(request, 5, 52) is active
        request.output_ids = [50, 51, 52]
        book.commit(active, [53])
        assert book.follow(request, 6, 53) is active
        assert len(begun) == 1
        assert begun[0].committed == [1, 2, 3, 50, 51, 52, 53]

    def test_tokens_that_were_taken_back_begin_a_new_session(self) -> None:
        book, begun = self.make(tree_of([1], [-1]))
        request = Request([1, 2, 3])
        active = book.follow(request, 3, 50)
        book.commit(active, [51, 52])
        request.output_ids = [50, 51]
        book.follow(request, 4, 51)
        assert [session.committed for session in begun][-1] == [1, 2, 3, 50, 51]

    @pytest.mark.parametrize(("length", "root"), [(5, 99), (4, 52)], ids=["another token", "another length"])
    def test_any_other_history_begins_a_new_session(self, length: int, root: int) -> None:
        book, begun = self.make(tree_of([1], [-1]))
        request = Request([1, 2, 3])
        book.commit(book.follow(request, 3, 50), [51, 52])
        request.output_ids = [50, 51, 99] if root == 99 else [50, 52]
        book.follow(request, length, root)
        assert [session.committed for session in begun][1:] == [[1, 2, 3, *request.output_ids]]

    @pytest.mark.parametrize("failing", [RuntimeError("no"), ValueError("bad"), MemoryError()])
    def test_a_drafter_that_fails_costs_drafts_alone(self, failing: Exception) -> None:
        book, _ = self.make(failing)
        active = book.follow(Request([1]), 1, 2)
        assert len(book.propose(active, Budget(), None)) == 0
        assert active.warnings[0].startswith("drafting failed")
        book.commit(active, [3])
        assert active.output == [2, 3]

    def test_tokens_outside_the_vocabulary_are_never_verified(self) -> None:
        book, _ = self.make(tree_of([VOCABULARY], [-1]))
        active = book.follow(Request([1]), 1, 2)
        assert len(book.propose(active, Budget(), None)) == 0
        assert "outside the target's vocabulary" in active.warnings[0]

    def test_switched_off(self) -> None:
        book, begun = self.make(tree_of([1], [-1]))
        book.follow(Request([1], speculation=False), 1, 2)
        assert begun == []

    def test_a_processor_that_knows_no_paths_switches_off(self) -> None:
        book, begun = self.make(tree_of([1], [-1]))
        request = Request([1])
        request.custom_logit_processor = "x"
        book.follow(request, 1, 2)
        assert begun == []

    def test_entries_end_with_their_requests(self) -> None:
        book, _ = self.make(tree_of([1], [-1]))
        request = Request([1])
        book.follow(request, 1, 2)
        assert len(book._active) == 1
        del request
        assert len(book._active) == 0

    def test_eagle_alone_stays_within_the_budget(self) -> None:
        book = DraftBook(None, None, VOCABULARY, None)
        active = book.follow(Request([1]), 1, 2)
        tree = tree_of([1, 2, 3, 4], [-1, 0, 1, -1], Source.EAGLE3)
        cut = book.propose(active, Budget(max_nodes=3, max_depth=2), tree)
        cut.validate(3, 2)
        assert cut.tokens.tolist() == [1, 2, 4]
        assert cut.parents.tolist() == [-1, 0, -1]


def test_confidence_is_the_chance_that_a_first_token_is_right() -> None:
    assert confidence(DraftTree.empty()) == 0
    assert confidence(tree_of([1, 2, 3], [-1, 0, -1], prob=0.4)) == pytest.approx(0.8)


class TestReceipt:
    def test_counts_by_source_without_the_tokens_behind_a_stop(self) -> None:
        request = Request([1])
        book = DraftBook(None, None, VOCABULARY, None)
        active = book.follow(request, 1, 2)
        sources = np.array([Source.REPOSITORY, Source.EAGLE3, Source.REPOSITORY], np.uint8)
        active.rounds = [Round(sources, sources[:2], False, 0.1, 0.5), Round(sources, sources, True, 0.1, 0.5)]
        active.rounds.append(Round(sources, sources, False, 0.1, 0.5))  # run before the end was noticed
        request.spec_verify_ct = 2
        request.output_ids = [2, *range(3), *range(2)]  # 1 + 3 and, of the last round's 4, only 2
        receipt = receipts.receipt(request, active)
        assert receipt["completion_tokens"] == 6
        assert receipt["verify_steps"] == 2
        assert receipt["drafted"] == {"repository": 4, "eagle3": 2}
        assert receipt["accepted"] == {"repository": 2, "eagle3": 2}
        assert receipt["eagle_skipped"] == 1

    def test_plain_steps_have_one_token_each(self) -> None:
        request = Request([1])
        active = DraftBook(None, None, VOCABULARY, None).follow(request, 1, 2)
        none = np.empty(0, np.uint8)
        active.rounds = [Round(none, none, False, 0.0, 0.1)] * 3
        request.spec_verify_ct, request.output_ids = 3, [2, 3, 4, 5]
        assert receipts.receipt(request, active)["accepted"] == {}


class Learner:
    """Stands in for estimates: keeps what it is told."""

    def __init__(self) -> None:
        self.told: dict[str, Any] = {}

    def observe(self, tokens: int, seconds: float) -> None:
        self.told["observed"] = (tokens, seconds)

    def verified(self, seconds: float, tokens: float, accepted: list[int]) -> None:
        self.told["verified"] = (tokens, accepted)

    def drafted(self, seconds: float) -> None:
        self.told["drafted"] = seconds


class TestVerdict:
    def settle(self, monkeypatch: pytest.MonkeyPatch, watch: Stopwatch | None, skipped: bool = False) -> Any:
        """A step of two requests: one takes an EAGLE-3 node behind its own first, the other nothing."""
        book = DraftBook(None, None, VOCABULARY, None)
        requests = [Request([1]), Request([1])]
        active = [book.follow(request, 1, 2) for request in requests]
        sources = [np.array([Source.REQUEST, Source.EDIT, Source.EAGLE3], np.uint8), np.empty(0, np.uint8)]
        verdict = Verdict(
            active=active,
            sources=lambda: sources,
            tokens=torch.tensor([5, 6, 7, 0, 8, 0, 0, 0], dtype=torch.int32),
            counts=torch.tensor([3, 1], dtype=torch.int32),
            accepted=torch.tensor([[0, 1, 3, -1], [4, -1, -1, -1]], dtype=torch.int32),
            width=4,
            eagle_skipped=skipped,
            eagle=watch,
            draft_seconds=0.5,
            started=10.0,
        )
        monkeypatch.setattr("agentspec.engines.sglang.verdict.perf_counter", lambda: 13.0)
        learner = Learner()
        verdict.settle(book, learner, learner)
        return active, learner.told

    def test_tokens_and_sources_go_to_their_requests(self, monkeypatch: pytest.MonkeyPatch) -> None:
        active, told = self.settle(monkeypatch, None)
        assert [one.output for one in active] == [[2, 5, 6, 7], [2, 8]]
        assert active[0].rounds[0].accepted.tolist() == [Source.REQUEST, Source.EAGLE3]
        assert active[1].rounds[0].accepted.tolist() == []
        assert told == {"observed": (8, 3.0), "verified": (2.0, [1, 0])}

    def test_a_round_without_eagle_says_nothing_of_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        _, told = self.settle(monkeypatch, None, skipped=True)
        assert told["verified"] == (2.0, [])

    def test_a_draft_that_nobody_waited_for_is_not_the_step(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Queued at 9, it took two seconds; the step was queued at 10 and began when the draft had ended."""
        times = iter([9.0, 9.0, 11.0])
        monkeypatch.setattr("agentspec.engines.sglang.verdict.perf_counter", lambda: next(times))
        watch = Stopwatch("cpu")
        watch.stop()
        _, told = self.settle(monkeypatch, watch)
        assert told["drafted"] == 2.0
        assert told["observed"] == (8, 2.0)
