"""The device benchmark's own logic; the whole script as a dry run needs triton."""

import json
import os
import sys
import time
from dataclasses import asdict, replace

import pytest
import torch

from agentspec.kernels.measuring.steps import Shape, random_step
from agentspec.kernels.measuring.timing import Timer, copy_bandwidth
from agentspec.kernels.paged_tree_attention import paged_tree_attention
from benchmarks.device import part
from benchmarks.device.plot import line_plot
from benchmarks.device.programme import GOAL_SHAPE, full_programme, tiny_programme
from benchmarks.device.results import Results
from benchmarks.device.run import Run, main

SMALL = {"heads": 4, "kv_heads": 2, "head_dim": 8}


def causal(step):
    chain = torch.ones(step.shape.width, step.shape.width, dtype=torch.bool).tril().long()
    bits = (chain << torch.arange(step.shape.width)).sum(-1, keepdim=True).repeat(step.shape.batch, 1)
    return lambda: paged_tree_attention(step.query, step.cache, step.batch, bits, step.rules)[0]


def unwritten(step):
    return lambda: torch.full_like(step.query, torch.nan)


@pytest.mark.parametrize("plan", [causal, unwritten])
def test_a_wrong_contender_is_found_out_and_not_timed(monkeypatch, plan):
    """Causal attention passes for a chain and for nothing else; an output that is never written is noticed."""
    monkeypatch.setattr(part, "contender", lambda *_: plan)
    programme = replace(tiny_programme(), checked=(Shape(12, 2, 9, **SMALL),))
    [record] = part.attention("owned", programme, "cpu", time.monotonic() + 60)
    assert record["check"] == "owned"
    assert not record["passed"]


def test_a_right_one_passes_and_is_timed_until_the_deadline():
    programme = replace(tiny_programme(), checked=(Shape(12, 2, 9, **SMALL),))
    check, *times = part.attention("torch_two_part", programme, "cpu", time.monotonic() + 60)
    assert check["passed"]
    assert [one["shape"] for one in times] == [asdict(shape) for shape in programme.timed]
    late = list(part.attention("torch_two_part", programme, "cpu", time.monotonic() - 1))
    assert late[1:] == [
        {"left_out": "torch_two_part, 4 x 1 x 16: no time"},
        {"left_out": "torch_two_part, 4 x 1 x 64: no time"},
    ]


PRINT = "import json, os, sys, time; print(json.dumps({}), flush=True); "


def timed(name, microseconds, shape=GOAL_SHAPE):
    return {"time": name, "shape": asdict(shape), "microseconds": microseconds}


@pytest.mark.parametrize(
    ("ending", "seconds", "error"),
    [
        ("os.abort()", 60, "exit status -6"),
        ("sys.exit('no kernel image')", 60, "no kernel image"),
        ("print('warming up')", 60, "something else than JSON: warming up"),
        ("time.sleep(60)", 2, "ended after 2 s"),
    ],
)
def test_a_part_that_fails_costs_nothing_but_itself(tmp_path, ending, seconds, error):
    run = Run("cpu", True, tmp_path, time.monotonic() + 60)
    for name, time_taken, end in (("owned", 5.0, ending), ("causal", 4.0, "")):
        run.part(name, [sys.executable, "-c", PRINT.format(timed(name, time_taken)) + end], seconds)
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["attention"] == {"32 x 1 x 32768": {"owned": 5.0, "causal": 4.0}}
    assert list(written["errors"]) == ["owned"]
    assert error in written["errors"]["owned"]
    assert "| 5 µs" in (tmp_path / "attention.md").read_text()


def test_no_part_begins_when_time_is_up(tmp_path):
    run = Run("cpu", True, tmp_path, time.monotonic() - 1)
    run.everything()
    assert set(run.results.errors) == {"steps", "curve", "torch_two_part", "triton"}
    assert set(run.results.errors.values()) == {"no time was left"}


def results_of(*records):
    results = Results(dry_run=False, copy_bytes_per_second=1e12)
    for record in records:
        results.add(record)
    return results


def test_goals_compare_the_best_of_ours():
    results = results_of(
        timed("causal", 100.0),
        timed("owned", 130.0),
        timed("two_part", 109.0),
        timed("stock", 190.0),
        {"steps": {"batch": 1, "pack_mask": 3.0, "accept_greedy": 20.0, "compact": 12.0}},
    )
    goals = {goal.what: (goal.measured, goal.met) for goal in results.goals()}
    assert goals == {
        "time over causal attention of the same shape": (1.09, True),
        "stock custom mask over ours": (pytest.approx(190 / 109), False),
        "mask set-up": (3.0, True),
        "acceptance and compaction": (32.0, False),
    }
    assert results.fastest() == {"32 x 1 x 32768": "two_part"}
    assert "| mask set-up | under 20 µs | 3.00 | met |" in results.table()


def test_what_was_not_measured_meets_and_misses_nothing():
    results = results_of(timed("stock", 190.0), timed("causal", 90.0))
    assert {goal.met for goal in results.goals()} == {None}
    assert results.table().count("not measured") == 4


def test_the_share_of_the_bandwidth_counts_keys_and_values():
    results = results_of(timed("owned", 100.0, Shape(8, 2, 992, heads=4, kv_heads=2, head_dim=64)))
    read = 2 * 2 * 1000 * 2 * 64 * 2  # keys and values, requests, tokens, heads, elements, bytes
    assert results.bandwidth_share("8 x 2 x 992", 100.0) == pytest.approx(read / 100e-6 / 1e12)


def test_random_steps_are_trees_over_scattered_tokens():
    step = random_step(Shape(7, 3, 11, **SMALL), 0, "cpu", torch.float32)
    assert step.masks.shape == (3, 7, 7)
    assert bool((step.masks.diagonal(dim1=1, dim2=2)).all())
    assert bool((step.masks.triu(1) == 0).all())
    assert step.batch.kv_lengths().tolist() == [18, 18, 18]
    assert sorted(step.batch.page_indices.tolist()) == list(range(54))
    assert step.row_indptr.tolist() == [0, 7, 14, 21]


def test_the_programme_begins_with_the_shape_that_goals_are_stated_for():
    shapes = full_programme().timed
    assert shapes[0] == GOAL_SHAPE
    assert {shape.width for shape in shapes} == {1, 8, 16, 32, 64}
    assert {shape.batch for shape in shapes} == {1, 4, 8}
    assert (shapes[0].width, shapes[0].batch, shapes[0].context) == (32, 1, 32_768)
    assert len(set(shapes)) == len(shapes)


def test_times_are_medians_and_bandwidth_counts_both_ways(monkeypatch):
    clock = iter([0.0, 3.0, 10.0, 11.0, 20.0, 22.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    timer = Timer("cpu", repetitions=3)
    assert timer.microseconds(lambda: None) == 2e6
    clock = iter([0.0, 2.0] * 3)
    assert copy_bandwidth("cpu", timer, size=100) == pytest.approx(100.0)


def test_plots_hold_every_line_and_survive_having_none():
    assert line_plot("t", "x", {"a<b": [(1, 2), (10, 20)], "c": [(1, 3)]}).count("<polyline") == 2
    assert "a&lt;b" in line_plot("t", "x", {"a<b": [(1, 2)]})
    assert "nothing measured" in line_plot("t", "x", {})


@pytest.mark.sglang
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="the dry run interprets the Triton kernels")
def test_the_dry_run_goes_through_everything(tmp_path, capsys):
    assert main(["--dry-run", "--output", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["dry_run"]
    assert results["errors"] == {}
    assert all(check["passed"] for check in results["checks"])
    assert {check["check"] for check in results["checks"]} == {"torch_two_part", "triton"}
    assert set(results["attention"]) == set(results["fastest"]) == {"4 x 1 x 16", "4 x 1 x 64"}
    assert set(results["steps"][0]) >= {"pack_mask", "accept_greedy", "accept_sampled", "compact"}
    assert results["cost_curve"]["tokens"][0] == 1
    assert results["left_out"] == []
    assert "| 4 x 1 x 16 |" in (tmp_path / "attention.md").read_text() == capsys.readouterr().out
