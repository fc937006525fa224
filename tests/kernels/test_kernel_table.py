"""Choosing verify kernels by measurement: the table, the tuner that makes it, and the form of a deployment."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import Gemma2Config, LlamaConfig
from typer.testing import CliRunner

from agentspec.cli.main import app
from agentspec.config import Settings
from agentspec.engines.sglang.kernel_form import kernel_form
from agentspec.errors import InvalidRequestError
from agentspec.kernels.flashinfer_tree.variant import TreeVariant
from agentspec.kernels.kernel_table import DEFAULT, KernelTable, Measurement, TableKey
from agentspec.kernels.measuring.tuner import Grid, tune
from agentspec.kernels.paged_tree_attention import paged_tree_attention
from agentspec.kernels.verify_kernels import VerifyKernel, exact_kernels

KEY = TableKey(gpu="NVIDIA H200", flashinfer="0.7.2", form="agentspec_tree_bf16_bf16_d64", heads=4, kv_heads=2)
OWNED, TWO_PART, STOCK = VerifyKernel.OWNED, VerifyKernel.TWO_PART, VerifyKernel.STOCK


def measured(rows, batch, context, **times):
    microseconds = {VerifyKernel(name): time for name, time in times.items()}
    return Measurement(rows=rows, batch=batch, context=context, microseconds=microseconds)


def table_of(*measurements, excluded=None):
    return KernelTable(key=KEY, measurements=measurements, excluded=excluded or {})


def test_the_nearest_shape_decides_by_ratio():
    table = table_of(
        measured(8, 1, 1000, owned=1, two_part=2),
        measured(8, 1, 16_000, owned=2, two_part=1),
        measured(32, 1, 1000, owned=2, two_part=1),
        measured(32, 1, 16_000, owned=2, two_part=1),
    )
    assert table.fastest(8, 1, 900) is OWNED
    assert table.fastest(8, 1, 3900) is OWNED
    assert table.fastest(8, 1, 4200) is TWO_PART, "4200 is nearer to 16000 than to 1000 by ratio"
    assert table.fastest(17, 5, 900) is TWO_PART
    assert table.fastest(15, 5, 0) is OWNED


def test_a_graph_takes_the_kernel_that_loses_least_over_all_contexts():
    table = table_of(
        measured(8, 1, 1000, owned=10, two_part=12, stock=9),
        measured(8, 1, 16_000, owned=100, two_part=50, stock=300),
    )
    assert table.fastest(8, 1, None) is TWO_PART
    assert table.fastest(8, 1, 1000) is STOCK


def test_only_kernels_that_are_exact_and_work_are_chosen():
    table = table_of(measured(8, 1, 1000, owned=3, two_part=2, stock=1), excluded={STOCK: "wrong"})
    assert table.fastest(8, 1, 1000) is TWO_PART
    assert table.fastest(8, 1, 1000, {OWNED, STOCK}) is OWNED
    assert table.fastest(8, 1, 1000, {VerifyKernel.DIAGONAL}) is DEFAULT
    assert table_of().fastest(8, 1, 1000) is DEFAULT


@given(
    rows=st.integers(1, 256),
    batch=st.integers(1, 64),
    context=st.none() | st.integers(0, 10**6),
    times=st.lists(st.tuples(*[st.floats(0.1, 1e6)] * len(VerifyKernel)), min_size=1, max_size=4),
)
def test_every_shape_has_an_answer(rows, batch, context, times):
    names = list(VerifyKernel)
    table = table_of(
        *(measured(8 << i, 1 << i, 100 << i, **dict(zip(names, row, strict=True))) for i, row in enumerate(times))
    )
    assert table.fastest(rows, batch, context) in names


def test_tables_are_kept_by_gpu_form_and_version(tmp_path):
    table = table_of(measured(8, 1, 1000, owned=1.5), excluded={STOCK: "out of memory"})
    file = table.save(tmp_path)
    assert file.name == "NVIDIA_H200_flashinfer-0.7.2_agentspec_tree_bf16_bf16_d64_h4_kv2.json"
    assert KernelTable.load(KEY, tmp_path) == table
    assert KernelTable.load(KEY.model_copy(update={"heads": 8}), tmp_path) is None
    file.rename(KEY.model_copy(update={"flashinfer": "0.8"}).file(tmp_path))
    assert KernelTable.load(KEY.model_copy(update={"flashinfer": "0.8"}), tmp_path) is None, "its own key decides"
    file.write_text("{")
    assert KernelTable.load(KEY, tmp_path) is None


class Clock:
    """A timer that runs what it is given and says how long its kernel takes."""

    def __init__(self, seconds):
        self._seconds = seconds

    def microseconds(self, run):
        run()
        return self._seconds[run.kernel]


def plan_with(broken=(), failing=(), late=()):
    """Plans kernels that compute with torch; some of them wrong, and some not at all."""

    def plan(kernel, step):
        if kernel in failing:
            raise RuntimeError("no such instruction")

        def run():
            if kernel in late and step.shape.context > 400:
                raise RuntimeError("out of memory")
            output, _ = paged_tree_attention(step.query, step.cache, step.batch, step.bits, step.rules)
            return output.fill_(torch.nan) if kernel in broken else output

        run.kernel = kernel
        return run

    return plan


def test_the_tuner_measures_what_is_right_and_says_what_is_not():
    variant = TreeVariant(torch.bfloat16, torch.bfloat16, 64)
    grid = Grid(rows=(2, 40), batches=(1, 8), contexts=(100, 500), tokens=800)
    times = {OWNED: 5.0, TWO_PART: 3.0, STOCK: 1.0, VerifyKernel.TWO_PART_FA3: 2.0, VerifyKernel.DIAGONAL: 4.0}
    plan = plan_with(broken={STOCK}, failing={VerifyKernel.TWO_PART_FA3}, late={VerifyKernel.DIAGONAL})
    table = tune(KEY, variant, grid, plan, Clock(times), device="cpu")
    assert {(one.rows, one.batch, one.context) for one in table.measurements} == {
        (2, 1, 100),
        (40, 1, 100),
        (2, 8, 100),
        (40, 8, 100),
        (2, 1, 500),
        (40, 1, 500),
    }
    assert table.measurements[0].microseconds == {VerifyKernel.DIAGONAL: 4.0, OWNED: 5.0, TWO_PART: 3.0}
    assert table.measurements[-1].microseconds == {OWNED: 5.0, TWO_PART: 3.0}
    assert set(table.excluded) == {STOCK, VerifyKernel.TWO_PART_FA3, VerifyKernel.DIAGONAL}
    assert "wrong by inf" in table.excluded[STOCK]
    assert "RuntimeError: no such instruction" in table.excluded[VerifyKernel.TWO_PART_FA3]
    assert "out of memory" in table.excluded[VerifyKernel.DIAGONAL]
    assert table.fastest(2, 1, 100) is TWO_PART


@pytest.mark.parametrize(("cap", "window"), [(True, False), (False, True)])
def test_forms_with_rules_of_their_own_are_tuned_under_them(cap, window):
    variant = TreeVariant(torch.float16, torch.float8_e5m2, 64, soft_cap=cap, window=window)
    seen = []

    def plan(kernel, step):
        seen.append((step.rules.soft_cap > 0, step.rules.window >= 0, step.cache[0].dtype))
        return plan_with()(kernel, step)

    grid = Grid(rows=(4,), batches=(1,), contexts=(60,))
    table = tune(KEY, variant, grid, plan, Clock(dict.fromkeys(VerifyKernel, 1.0)), device="cpu")
    assert set(seen) == {(cap, window, torch.float8_e5m2)}
    assert set(table.measurements[0].microseconds) == exact_kernels(variant, 4, 2)
    assert table.excluded == {}


LLAMA = LlamaConfig(hidden_size=512, num_attention_heads=8, num_key_value_heads=2, head_dim=64, dtype="bfloat16")


def test_the_form_of_a_deployment():
    form = kernel_form(Settings.load(sglang={"tensor_parallel": 2}), LLAMA)
    assert (form.variant, form.heads, form.kv_heads) == (TreeVariant(torch.bfloat16, torch.bfloat16, 64), 4, 1)
    eight_bits = Settings.load(engine={"dtype": "float16"}, sglang={"arguments": {"kv-cache-dtype": "fp8_e5m2"}})
    assert kernel_form(eight_bits, LLAMA).variant == TreeVariant(torch.float16, torch.float8_e5m2, 64)
    gemma = Gemma2Config(num_attention_heads=8, num_key_value_heads=4, head_dim=256, dtype="float32")
    assert kernel_form(Settings.load(), gemma).variant == TreeVariant(torch.float16, torch.float16, 256, soft_cap=True)


def test_forms_without_a_kernel_are_refused():
    with pytest.raises(InvalidRequestError, match="head dimension 96"):
        kernel_form(Settings.load(), LlamaConfig(head_dim=96, dtype="bfloat16"))
    with pytest.raises(InvalidRequestError, match="a cache of fp4_e2m1"):
        kernel_form(Settings.load(sglang={"arguments": {"kv-cache-dtype": "fp4_e2m1"}}), LLAMA)


def test_the_command_needs_a_gpu():
    result = CliRunner().invoke(app, ["kernels", "tune"])
    assert result.exit_code == 1
    assert "no CUDA GPU here" in result.stderr


@pytest.mark.sglang
@pytest.mark.parametrize("excluded", [{}, {OWNED: "illegal instruction"}])
def test_the_command_writes_the_table_of_the_settings(monkeypatch, tmp_path, excluded):
    """On a machine with a GPU; here the tuner stands in for it. Nothing is written where our own kernel fails."""
    LLAMA.save_pretrained(tmp_path / "model")
    orders = []

    def record(key, variant, grid, plan, timer):
        orders.append((variant, grid.rows))
        one = measured(8, 1, 1000, owned=2, two_part=1)
        return KernelTable(key=key, measurements=(one,), excluded=excluded)

    monkeypatch.setenv("AGENTSPEC_CACHE_DIRECTORY", str(tmp_path))
    monkeypatch.setattr("agentspec.kernels.measuring.tuner.tune", record)
    monkeypatch.setattr("agentspec.kernels.measuring.timing.Timer", lambda device: None)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "Some GPU")
    result = CliRunner().invoke(app, ["kernels", "tune", "--model", str(tmp_path / "model")])
    if excluded:
        assert result.exit_code == 1
        assert "illegal instruction" in result.stderr
        assert not (tmp_path / "kernels").exists()
        return
    assert result.exit_code == 0, result.output
    assert orders == [(TreeVariant(torch.bfloat16, torch.bfloat16, 64), (1, 8, 16, 32, 64))]
    [file] = (tmp_path / "kernels").iterdir()
    assert str(file) in result.stdout
    assert "two_part" in result.stdout
    assert KernelTable.model_validate_json(file.read_bytes()).key.gpu == "Some GPU"
