"""The command line and environment of a server, and the presets that lead to them."""

import json
from pathlib import Path

import pytest

from agentspec.config import Settings
from agentspec.engines.sglang.command import server_command, server_environment

CONFIGS = Path(__file__).parents[3] / "configs"
PRESETS = sorted(file for file in CONFIGS.glob("*.yaml") if "kind: sglang" in file.read_text())


def flags(command: list[str]) -> dict[str, str | bool]:
    """Flags of a command by name; those without a value are True."""
    found: dict[str, str | bool] = {}
    for word, following in zip(command, [*command[1:], "--"], strict=True):
        if word.startswith("--"):
            found[word] = True if following.startswith("--") else following
    return found


def test_there_are_presets_for_every_class_of_machine() -> None:
    assert len(PRESETS) >= 4


@pytest.mark.parametrize("preset", PRESETS, ids=lambda file: file.stem)
def test_presets_fit_the_settings(preset: Path) -> None:
    settings = Settings.load(preset)
    found = flags(server_command(settings, settings.engine.model, 1234))
    assert found["--host"] == "127.0.0.1"
    assert found["--speculative-algorithm"] == "AGENTSPEC"
    assert settings.drafting.max_nodes < max(settings.sglang.verify_widths)
    assert settings.sglang.verify_widths[0] == 1, "a step without drafts must cost no more than plain decoding"


def test_a_cpu_server_runs_in_float32_on_our_backend() -> None:
    settings = Settings.load(engine={"kind": "sglang", "device": "cpu", "threads": 3})
    found = flags(server_command(settings, "model", 1234))
    assert found["--attention-backend"] == "agentspec_cpu"
    assert found["--dtype"] == "float32"
    assert "--enable-deterministic-inference" not in found
    environment = server_environment(settings)
    assert environment["SGLANG_USE_CPU_ENGINE"] == "1"
    assert environment["OMP_NUM_THREADS"] == "3"


def test_a_gpu_server_keeps_sglangs_own_choices() -> None:
    settings = Settings.load(engine={"kind": "sglang", "device": "cuda"}, sglang={"tensor_parallel": 2})
    found = flags(server_command(settings, "model", 1234))
    assert found["--tp-size"] == "2"
    assert "--attention-backend" not in found
    assert "SGLANG_USE_CPU_ENGINE" not in server_environment(settings)


def test_own_arguments_win_and_false_leaves_out() -> None:
    arguments = {"page-size": 16, "enable-metrics": False, "dtype": "bfloat16", "disable-overlap-schedule": True}
    settings = Settings.load(engine={"kind": "sglang", "device": "cpu"}, sglang={"arguments": arguments})
    found = flags(server_command(settings, "model", 1234))
    assert found["--page-size"] == "16"
    assert found["--dtype"] == "bfloat16"
    assert found["--disable-overlap-schedule"] is True
    assert "--enable-metrics" not in found


def test_speculation_off_is_plain_sglang() -> None:
    settings = Settings.load(engine={"kind": "sglang", "speculation": False}, sglang={"draft_model": "head"})
    found = flags(server_command(settings, "model", 1234))
    assert "--speculative-algorithm" not in found
    assert "--speculative-draft-model-path" not in found


def test_the_plugin_reads_the_same_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = Settings.load(
        sglang={"model_free": False, "verify_widths": [1, 4], "draft_nodes": 5, "arguments": {"page-size": 1}},
        drafting={"max_nodes": 7, "min_path_prob": 0.25},
        index={"directory": tmp_path},
    )
    for name, value in server_environment(settings).items():
        monkeypatch.setenv(name, value)
    again = Settings.load()
    assert again.sglang == settings.sglang
    assert again.drafting == settings.drafting
    assert again.index.directory == tmp_path
    assert json.loads(server_environment(settings)["AGENTSPEC_SGLANG__VERIFY_WIDTHS"]) == [1, 4]
