"""`agentspec bench edit` and `agentspec demo` end to end on a tiny random model."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentspec.benchmarking import draft_modes, editing, editing_loop
from agentspec.benchmarking.editing_loop import EDITED_FILE
from agentspec.benchmarking.tasks import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

    from agentspec.benchmarking.measure import Measurement
    from tests.benchmarking.conftest import ScratchRepository

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture
def differing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speculation changes the last token of every text."""
    for module in (editing, editing_loop):
        real = module.measure

        async def measure(engine: object, request: object, *rest: object, _real: object = real) -> Measurement:
            measured = await _real(engine, request, *rest)  # type: ignore[operator]
            return replace(measured, token_ids=(*measured.token_ids[:-1], -1)) if request.speculation else measured

        monkeypatch.setattr(module, "measure", measure)


def test_every_kind_runs_in_both_modes_with_the_same_text(
    agentspec: Callable[..., Result], repository: ScratchRepository, small: tuple[object, ...]
) -> None:
    result = agentspec("bench", "edit", *small, "--repository", repository.root, "--prompts", "4", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["identical"] == 4
    assert [request["kind"] for request in document["requests"]] == list(KINDS)
    assert document["plain"]["tokens"] == document["drafted"]["tokens"] > 0
    assert document["plain"]["errors"] == document["drafted"]["errors"] == 0
    assert document["plain"]["tokens_per_step"] == pytest.approx(1.0, abs=0.05)
    assert document["drafted"]["verify_steps"] <= document["plain"]["verify_steps"]
    assert document["peak_memory_bytes"] > 2**20


def test_the_tables_show_both_modes(
    agentspec: Callable[..., Result], repository: ScratchRepository, small: tuple[object, ...]
) -> None:
    result = agentspec(
        "bench", "edit", *small, "--repository", repository.root, "--prompts", "1", "--kind", "whole-file"
    )
    assert result.exit_code == 0, result.output
    for words in ("whole-file", "1/1", "time to first token", "between bursts", "peak memory", "ratio"):
        assert words in result.stdout


@pytest.mark.usefixtures("differing")
def test_a_text_that_differs_fails_the_benchmark(
    agentspec: Callable[..., Result], repository: ScratchRepository, small: tuple[object, ...]
) -> None:
    result = agentspec("bench", "edit", *small, "--repository", repository.root, "--prompts", "1")
    assert result.exit_code == 1
    assert "the texts differ" in result.stderr


def test_an_unknown_kind_and_a_repository_without_files_are_said(
    agentspec: Callable[..., Result], repository: ScratchRepository, small: tuple[object, ...], tmp_path: Path
) -> None:
    result = agentspec("bench", "edit", *small, "--repository", repository.root, "--kind", "poem")
    assert result.exit_code == 2
    assert "unknown kind of edit 'poem'" in result.stderr
    (tmp_path / "empty").mkdir()
    result = agentspec("bench", "edit", *small, "--repository", tmp_path / "empty")
    assert result.exit_code == 2
    assert "no source file" in result.stderr


@pytest.fixture
def checkout(repository: ScratchRepository) -> Path:
    """A repository with the file that the demo edits."""
    (repository.root / EDITED_FILE).parent.mkdir()
    (repository.root / EDITED_FILE).write_text((CHECKOUT / EDITED_FILE).read_text())
    return repository.root


def test_the_demo_edits_in_a_loop_and_finds_no_difference(
    agentspec: Callable[..., Result], checkout: Path, small: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(editing_loop, "MAX_TOKENS", 48)
    result = agentspec("demo", *small, "--repository", checkout)
    assert result.exit_code == 0, result.output
    for request in ("whole file", "search/replace", "follow-up"):
        assert f"{request}, speculation off" in result.stdout
        assert f"{request}, speculation on" in result.stdout
    rows = {line.split("  ")[0].strip(): line.split() for line in result.stdout.splitlines() if "→" in line}
    assert set(rows) == {"whole file", "search/replace", "follow-up", "loop"}
    assert all(row[-1] == "yes" for row in rows.values())
    assert int(rows["follow-up"][-2]) > 100, "the follow-up reuses the conversation's prefix"
    assert int(rows["whole file"][-2]) < 10, "nothing is cached before the loop"


@pytest.mark.usefixtures("differing")
def test_the_demo_fails_when_a_text_differs(
    agentspec: Callable[..., Result], checkout: Path, small: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(editing_loop, "MAX_TOKENS", 8)
    result = agentspec("demo", *small, "--repository", checkout)
    assert result.exit_code == 1
    assert " no" in result.stdout


def test_a_request_that_fails_fails_the_demo(
    agentspec: Callable[..., Result], checkout: Path, small: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTSPEC_ENGINE__CONTEXT_LENGTH", "256")
    result = agentspec("demo", *small, "--repository", checkout)
    assert result.exit_code == 1
    assert "maximum context length" in result.stdout


def test_elsewhere_the_demo_says_where_it_belongs(agentspec: Callable[..., Result], tmp_path: Path) -> None:
    result = agentspec("demo", "--repository", tmp_path)
    assert result.exit_code == 2
    assert EDITED_FILE in result.stderr


def test_every_source_runs_by_itself_with_the_same_text(
    agentspec: Callable[..., Result], repository: ScratchRepository, small: tuple[object, ...]
) -> None:
    command = ("bench", "edit", *small, "--repository", repository.root, "--prompts", "2", "--sources")
    result = agentspec(*command, "--kind", "whole-file", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    by_mode = {row["mode"]: row for row in document["modes"] if row["kind"] == "all"}
    assert list(by_mode) == ["plain", "prompt lookup", "model-free"]  # no head comes with this model
    for row in by_mode.values():
        assert row["identical"] == row["requests"] == 2
        assert row["tokens"] == by_mode["plain"]["tokens"] > 0
    assert by_mode["plain"]["drafted_per_step"] == 0
    assert by_mode["prompt lookup"]["drafted_per_step"] > 0
    table = agentspec(*command, "--kind", "whole-file")
    assert all(words in table.stdout for words in ("tokens/step", "prompt lookup", "2/2"))


def test_a_source_that_changes_a_text_fails_the_comparison(
    agentspec: Callable[..., Result],
    repository: ScratchRepository,
    small: tuple[object, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = draft_modes.measure

    async def measure(engine: object, request: object) -> Measurement:
        measured = await real(engine, request)  # type: ignore[arg-type]
        return replace(measured, token_ids=(*measured.token_ids[:-1], -1)) if request.speculation else measured  # type: ignore[attr-defined]

    monkeypatch.setattr(draft_modes, "measure", measure)
    result = agentspec("bench", "edit", *small, "--repository", repository.root, "--prompts", "1", "--sources")
    assert result.exit_code == 1


def test_llama_cpp_that_is_not_installed_is_said_before_anything_is_measured(
    agentspec: Callable[..., Result],
    repository: ScratchRepository,
    small: tuple[object, ...],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    monkeypatch.setattr(draft_modes, "measure", None)
    command = ("bench", "edit", *small, "--repository", repository.root, "--prompts", "1", "--sources")
    result = agentspec(*command, "--gguf", tmp_path / "weights.gguf")
    assert result.exit_code == 2
    assert "pip install xllamacpp" in result.stderr
