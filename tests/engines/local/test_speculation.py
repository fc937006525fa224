import numpy as np
import pytest

from agentspec.drafters.base import Budget, DraftRequest
from agentspec.drafters.tree import ROOT, DraftTree
from agentspec.engines.local.drafting import ChoiceDrafting
from agentspec.engines.local.speculation import Governor, StepClock
from tests.engines.local.scripted_drafters import ScriptedDrafter, tree_from_edges


class LinearCost:
    def seconds(self, rows, context):
        return 1.0 + 0.1 * rows + 0.001 * context


def drafting_steps(governor, steps, tokens, seconds):
    """How many of `steps` drafted, when each draft brings so much in that time and a plain step takes one second."""
    drafted = 0
    for _ in range(steps):
        if governor.least_path_probability() is not None:
            drafted += 1
            governor.observe(tokens, seconds, 1.0)
    return drafted


def test_drafts_that_pay_are_never_suspended():
    assert drafting_steps(Governor(), 500, tokens=3, seconds=2.0) == 500


def test_drafts_that_do_not_pay_are_nearly_given_up():
    governor = Governor()
    assert drafting_steps(governor, 1000, tokens=1, seconds=1.5) < 40


def test_drafting_is_taken_up_again_when_it_pays():
    governor = Governor()
    drafting_steps(governor, 1000, tokens=1, seconds=1.5)
    drafting_steps(governor, 300, tokens=8, seconds=1.5)
    assert drafting_steps(governor, 100, tokens=8, seconds=1.5) == 100


def test_one_bad_step_among_good_ones_is_forgiven():
    governor = Governor()
    for step in range(100):
        assert governor.least_path_probability() == 0
        governor.observe(1 if step % 4 == 3 else 4, 1.5, 1.0)


def test_a_copy_that_begins_in_a_pause_is_drafted():
    governor = Governor()
    while not governor.least_path_probability():
        governor.observe(tokens=1, seconds=1.5, plain_seconds=1.0)
    governor.observe(tokens=8, seconds=1.5, plain_seconds=1.0)
    assert governor.least_path_probability() == 0


def test_a_pause_in_which_sure_drafts_fail_admits_nothing():
    governor = Governor()
    asked = [governor.least_path_probability()]
    while asked[-1] is not None:
        governor.observe(tokens=1, seconds=1.25, plain_seconds=1.0)
        asked.append(governor.least_path_probability())
    assert asked == [0.0] * 4 + [0.5] * 2 + [None]


def test_drafts_of_a_paused_sequence_are_likelier_right_than_wrong():
    bounds = []
    script = ScriptedDrafter(lambda _, budget: bounds.append(budget.min_path_prob) or tree_from_edges([(ROOT, 1, 0)]))
    drafting = ChoiceDrafting("r/0", vocab_size=100)
    drafting.begin(script, DraftRequest(np.array([1], np.int32)))
    for _ in range(5):
        assert drafting.wants_draft()
        drafting.propose(Budget(max_nodes=8, max_depth=4, min_path_prob=0.02))
        drafting.step_cost(seconds=3.0, plain_seconds=1.0)
        drafting.commit([7])
    assert bounds == [0.02] * 4 + [0.5]


def test_the_curve_is_the_cost_of_a_whole_batch_that_drafts():
    clock = StepClock(LinearCost())
    curve = clock.verify_curve(batch=3, context=256, max_nodes=4)
    assert curve.dtype == np.float32
    assert curve == pytest.approx([1.0 + 0.1 * 3 * (nodes + 1) + 0.256 for nodes in range(5)])


def test_the_clock_learns_how_loaded_the_machine_is():
    clock = StepClock(LinearCost())
    for _ in range(100):
        clock.observe_plain(1, 0, 2.2)
    assert clock.plain_seconds(1, 0) == pytest.approx(2.2, rel=1e-3)
    assert clock.plain_seconds(11, 0) == pytest.approx(4.2, rel=1e-3)


@pytest.mark.parametrize(("seconds", "tokens"), [(0.1, 8), (2.65, 16), (3.0, 16), (1e9, 40)])
def test_tokens_that_a_pass_of_some_length_takes(seconds, tokens):
    assert StepClock(LinearCost()).tokens_within(seconds, multiple=8, most=40) == tokens


def test_one_plain_step_is_enough_to_know_a_much_slower_machine():
    clock = StepClock(LinearCost())
    clock.observe_plain(1, 0, 5.5)
    assert clock.plain_seconds(1, 0) == pytest.approx(5.5)
    clock.observe_plain(1, 0, 3.3)
    assert clock.plain_seconds(1, 0) == pytest.approx(4.4)


def test_share_of_one_sequence_in_a_step():
    clock = StepClock(LinearCost())
    assert clock.share(batch=2, nodes=0, all_nodes=0, context=0) == 1
    assert clock.share(batch=2, nodes=3, all_nodes=8, context=0) == pytest.approx(1.5 / 2.0)


def failing(*_):
    raise RuntimeError("out of ideas")


BROKEN = {
    "raises": failing,
    "a parent after its child": lambda *_: tree_from_edges([(1, 5, 0), (ROOT, 6, 0)]),
    "a token outside the vocabulary": lambda *_: tree_from_edges([(ROOT, 100, 0)]),
    "too many nodes": lambda *_: tree_from_edges([(ROOT, token, 0) for token in range(9)]),
    "too deep": lambda *_: tree_from_edges([(node - 1, 1, 0) for node in range(5)]),
    "not a tree": lambda *_: None,
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_failing_drafter_is_dropped_with_a_warning(kind):
    drafting = ChoiceDrafting("r/0", vocab_size=100)
    drafting.begin(ScriptedDrafter(BROKEN[kind]), DraftRequest(np.array([1], np.int32)))
    assert drafting.wants_draft()
    drafting.propose(Budget(max_nodes=8, max_depth=4))
    assert len(drafting.tree) == 0
    assert "drafting failed" in drafting.warning
    assert not drafting.wants_draft()
    drafting.commit([1, 2])


def test_a_drafter_that_cannot_begin_is_dropped_with_a_warning():
    class Broken:
        def begin(self, request):
            raise MemoryError

    drafting = ChoiceDrafting("r/0", vocab_size=100)
    drafting.begin(Broken(), DraftRequest(np.array([1], np.int32)))
    assert not drafting.wants_draft()
    assert drafting.warning


def test_time_in_the_drafter_counts_against_it():
    drafting = ChoiceDrafting("r/0", vocab_size=100)
    drafting.begin(ScriptedDrafter(lambda *_: tree_from_edges([(ROOT, 1, 0)])), DraftRequest(np.array([1], np.int32)))
    drafted = 0
    for _ in range(50):
        if drafting.wants_draft():
            drafted += 1
            drafting.propose(Budget(max_nodes=8, max_depth=4))
        else:
            drafting.skip()
        drafting.step_cost(seconds=3.0, plain_seconds=1.0)
        drafting.commit([7])
    assert drafted < 20
    assert drafting.seconds > 0


def test_an_empty_tree_is_no_trial():
    drafting = ChoiceDrafting("r/0", vocab_size=100)
    drafting.begin(ScriptedDrafter(lambda *_: DraftTree.empty()), DraftRequest(np.array([1], np.int32)))
    for _ in range(100):
        assert drafting.wants_draft()
        drafting.propose(Budget())
        drafting.step_cost(seconds=9.0, plain_seconds=1.0)
        drafting.commit([7])
