"""The device benchmark's own logic; the whole script as a dry run needs triton."""

import json
import os

import pytest
import torch

from agentspec.kernels.paged_tree_attention import paged_tree_attention
from benchmarks.device.checks import check_all
from benchmarks.device.contenders import contenders
from benchmarks.device.inputs import Shape, random_step
from benchmarks.device.plot import line_plot
from benchmarks.device.run import full_programme, main
from benchmarks.device.timing import Timer, copy_bandwidth

SMALL = {"heads": 4, "kv_heads": 2, "head_dim": 8}


def test_a_wrong_contender_is_found_out():
    """Causal attention passes for a chain and for nothing else; an output that is never written is noticed."""

    def causal(step):
        chain = torch.ones(step.shape.width, step.shape.width, dtype=torch.bool).tril().long()
        bits = (chain << torch.arange(step.shape.width)).sum(-1, keepdim=True).repeat(step.shape.batch, 1)
        return lambda: paged_tree_attention(step.query, step.cache, step.batch, bits, step.rules)[0]

    plans = {
        "tree": causal,
        "stock_mask": lambda step: lambda: torch.full_like(step.query, torch.nan),
        "two_part": contenders("cpu")["two_part"],
    }
    checks = check_all(plans, [Shape(12, 2, 9, **SMALL)], "cpu", torch.float32)
    assert {check.contender: check.passed for check in checks} == {
        "tree": False,
        "stock_mask": False,
        "two_part": True,
    }


def test_random_steps_are_trees_over_scattered_tokens():
    step = random_step(Shape(7, 3, 11, **SMALL), 0, "cpu", torch.float32)
    assert step.masks.shape == (3, 7, 7)
    assert bool((step.masks.diagonal(dim1=1, dim2=2)).all())
    assert bool((step.masks.triu(1) == 0).all())
    assert step.batch.kv_lengths().tolist() == [18, 18, 18]
    assert sorted(step.batch.page_indices.tolist()) == list(range(54))
    assert step.row_indptr.tolist() == [0, 7, 14, 21]


def test_the_programme_holds_the_shapes_that_goals_are_stated_for():
    shapes = full_programme().timed
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
    assert all(check["passed"] for check in results["checks"])
    assert {check["contender"] for check in results["checks"]} == {"two_part", "triton"}
    assert len(results["attention"]) == 2
    assert set(results["fastest"]) == {"4 x 1 x 16", "4 x 1 x 64"}
    assert set(results["steps"][0]) >= {"pack_mask", "accept_greedy", "accept_sampled", "compact"}
    assert results["cost_curve"]["tokens"][0] == 1
    assert results["left_out"] == []
    assert "| 4 | 1 | 16 |" in (tmp_path / "attention.md").read_text() == capsys.readouterr().out
