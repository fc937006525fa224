"""What is measured at start: cost curve, threads, element type, and the memory of them."""

import json
import os
import time
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentspec.engines.local import loader, measurements, tuning
from agentspec.engines.local.cost import GRID, CostCurve, cost_curve, measure_cost
from agentspec.engines.local.hardware import available_memory, processor_name, read_bandwidth, usable_cores
from agentspec.engines.local.kv_cache import KVCache, KVLayout
from agentspec.engines.local.measurements import remembered
from agentspec.engines.local.model import TargetModel
from agentspec.engines.local.native_model import NativeModel
from agentspec.errors import ModelError


@pytest.fixture
def calm(monkeypatch):
    """A machine with nothing else to do."""
    monkeypatch.setattr(measurements.os, "getloadavg", lambda: (0.0, 0.0, 0.0))


class TimedModel:
    """Sleeps as long as a linear model of cost says; keys and values are real."""

    context_length = 4096
    fingerprint = "timed"
    runs_on_caller = False

    def __init__(self, fixed: float = 2e-3, row: float = 1e-4, pair: float = 2e-8) -> None:
        self.fixed, self.row, self.pair = fixed, row, pair
        self.passes = 0

    def new_cache(self, capacity: int) -> KVCache:
        return KVCache(KVLayout(1, 1, 1, torch.float32, torch.device("cpu")), capacity)

    def forward(self, inputs) -> None:
        self.passes += 1
        [one] = inputs
        assert one.cache.length + len(one.tokens) <= one.cache.capacity
        rows = len(one.tokens)
        end = time.perf_counter() + self.fixed + self.row * rows + self.pair * rows * one.cache.length
        while time.perf_counter() < end:
            pass

    def synchronise(self) -> None:
        pass


def test_the_curve_is_the_models_cost():
    model = TimedModel()
    curve = measure_cost(model, budget=10)
    assert curve.tokens == GRID
    for rows, context in [(1, 0), (16, 500), (64, 2048), (50, 4000)]:
        expected = model.fixed + model.row * rows + model.pair * rows * context
        # Other work on the machine may add to any single pass, hence the wide upper side.
        assert 0.9 * expected < curve.seconds(rows, context) < 1.6 * expected


class DescheduledModel(TimedModel):
    """Computes on the calling thread, from which the system takes the core in every pass, longest in long ones."""

    runs_on_caller = True

    def forward(self, inputs) -> None:
        [one] = inputs
        rows = len(one.tokens)
        time.sleep(5e-4 * rows)
        end = time.thread_time() + self.fixed + self.row * rows
        while time.thread_time() < end:
            pass


def test_turns_of_other_programs_do_not_count_where_one_thread_computes():
    model = DescheduledModel()
    curve = measure_cost(model, budget=10)
    for rows in (1, 16, 64):
        expected = model.fixed + model.row * rows
        assert 0.9 * expected < curve.seconds(rows, 500) < 1.6 * expected


class OnceBusyModel(TimedModel):
    """Meets other work in as many passes as one repetition of the grid has, and in the first one of all."""

    def forward(self, inputs) -> None:
        if self.passes <= 2 * len(GRID):
            time.sleep(0.02)
        super().forward(inputs)


def test_a_busy_moment_does_not_show_in_the_curve():
    model = OnceBusyModel()
    curve = measure_cost(model, budget=10)
    for rows in (1, 64):
        expected = model.fixed + model.row * rows
        assert 0.9 * expected < curve.seconds(rows, 0) < 1.6 * expected


def test_a_pass_of_one_thread_runs_on_the_caller(tiny_folder, tmp_path):
    model = TargetModel.load(str(tiny_folder), tmp_path, device="cpu", dtype="float32", threads=1)
    assert model.runs_on_caller
    model.threads = 2
    assert not model.runs_on_caller


def test_measuring_a_slow_model_keeps_to_its_budget():
    model = TimedModel(fixed=0.05)
    start = time.perf_counter()
    curve = measure_cost(model, budget=0.3)
    assert time.perf_counter() - start < 0.8
    assert 1 <= len(curve.tokens) < len(GRID)
    assert curve.seconds(200, 100) >= curve.seconds(1, 100) > 0.04


@given(
    base=st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=len(GRID)).map(sorted),
    rows=st.integers(1, 500),
    context=st.integers(0, 100_000),
)
def test_more_tokens_never_cost_less(base, rows, context):
    curve = CostCurve(GRID[: len(base)], tuple(base), tuple(1e-9 * tokens for tokens in GRID[: len(base)]))
    assert curve.seconds(rows, context) <= curve.seconds(rows + 1, context) * (1 + 1e-9)
    assert curve.seconds(rows, context) <= curve.seconds(rows, context + 1) * (1 + 1e-9)
    assert curve.seconds(GRID[0], 0) == pytest.approx(base[0])


def test_a_curve_is_measured_once_for_each_machine_and_model(tmp_path, calm):
    model = TimedModel(fixed=1e-4, row=1e-5)
    first = cost_curve(model, tmp_path)
    passes = model.passes
    assert cost_curve(model, tmp_path) == first
    assert model.passes == passes
    model.fingerprint = "timed otherwise"
    cost_curve(model, tmp_path)
    assert model.passes > passes


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"null", b'{"x": 1}', b'{"x": 1, "subject": "another"}'])
def test_damaged_measurements_are_made_again(tmp_path, calm, damage):
    assert remembered(tmp_path, "x", lambda: {"x": 1}) == {"x": 1}
    [file] = (tmp_path / "measurements").iterdir()
    assert remembered(tmp_path, "x", lambda: {"x": 2}) == {"x": 1}
    file.write_bytes(damage)
    assert remembered(tmp_path, "x", lambda: {"x": 3}) == {"x": 3}
    assert json.loads(file.read_text())["x"] == 3


def test_measurements_of_a_busy_machine_are_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(measurements.os, "getloadavg", lambda: (usable_cores() + 1.0, 0.0, 0.0))
    assert remembered(tmp_path, "x", lambda: {"x": 1}) == {"x": 1}
    assert remembered(tmp_path, "x", lambda: {"x": 2}) == {"x": 2}


def test_a_cache_that_cannot_be_written_costs_only_time(calm, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    assert remembered(blocked, "x", lambda: {"x": 1}) == {"x": 1}


def test_threads_are_taken_while_they_pay(monkeypatch, tmp_path, calm):
    seconds = {1: 1.0, 2: 0.6, 4: 0.58, 8: 0.1}
    model = SimpleNamespace(threads=0, fingerprint="m")
    monkeypatch.setattr(tuning, "usable_cores", lambda: 8)
    monkeypatch.setattr(tuning, "_model_seconds", lambda model: seconds[model.threads])
    assert tuning.fastest_threads(model, tmp_path) == 2
    assert tuning.fastest_threads(SimpleNamespace(threads=0, fingerprint="m"), tmp_path) == 2


def test_loading_measures_what_was_not_asked_for(tiny_folder, tmp_path, calm):
    model = TargetModel.load(str(tiny_folder), tmp_path, device="cpu")
    assert isinstance(model, NativeModel)
    assert model.layout.dtype in (torch.float32, torch.bfloat16)
    assert 1 <= model.threads <= usable_cores()
    subjects = [json.loads(file.read_text())["subject"] for file in (tmp_path / "measurements").iterdir()]
    assert any("dtype" in subject for subject in subjects)
    assert any("threads" in subject for subject in subjects)
    chosen = TargetModel.load(str(tiny_folder), tmp_path, device="cpu", dtype="float32", threads=2)
    assert (chosen.layout.dtype, chosen.threads) == (torch.float32, 2)


def test_a_model_larger_than_memory_is_refused_before_it_is_read(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(loader, "available_memory", lambda: 1000)
    with pytest.raises(ModelError, match=r"weights take .* GiB of memory are free"):
        TargetModel.load(str(tiny_folder), tmp_path, device="cpu", dtype="float32")


def test_the_machine_describes_itself():
    assert processor_name()
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)
    assert available_memory() > 0
    assert 1e8 < read_bandwidth(1, passes=1) < 1e13
