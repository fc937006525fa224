"""`agentspec bench replay` on a scratch history."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import TYPE_CHECKING

from agentspec.benchmarking.comparison import NODE_LIMITS
from agentspec.benchmarking.formats import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result

    from tests.benchmarking.conftest import ScratchRepository


def test_every_format_and_drafter_is_replayed(
    agentspec: Callable[..., Result], repository: ScratchRepository, model: Path
) -> None:
    result = agentspec("bench", "replay", "--git", repository.root, "--tokenizer", model, "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert {row["format"] for row in rows} == set(FORMATS)
    best = {}
    for row in rows:
        key = row["format"], row["drafter"]
        best[key] = max(best.get(key, 0.0), row["summary"]["tokens_per_step"])
    assert best["whole-file", "agentspec"] > best["whole-file", "prompt-lookup"] > 2.0


def test_saved_traces_replay_the_same(
    agentspec: Callable[..., Result], repository: ScratchRepository, model: Path, tmp_path: Path
) -> None:
    common = ("bench", "replay", "--tokenizer", model, "--drafter", "suffix", "--json")
    fresh = agentspec(*common, "--git", repository.root, "--save", tmp_path / "traces.npz")
    again = agentspec(*common, "--traces", tmp_path / "traces.npz")

    def steps(result: Result) -> list[tuple[str, str, float]]:
        return [(row["format"], row["setting"], row["summary"]["tokens_per_step"]) for row in json.loads(result.stdout)]

    assert steps(fresh) == steps(again)
    one = agentspec(*common, "--traces", tmp_path / "traces.npz", "--format", "agent-json")
    assert {row["format"] for row in json.loads(one.stdout)} == {"agent-json"}


def test_the_tables_end_with_the_best_of_each_drafter(
    agentspec: Callable[..., Result], repository: ScratchRepository, model: Path
) -> None:
    common = ("bench", "replay", "--git", repository.root, "--tokenizer", model, "--drafter", "none")
    result = agentspec(*common, "--format", "whole-file", "--format", "unified-diff")
    *_, heading, names, none, empty = result.stdout.split("\n")[:-1]
    assert heading.startswith("Most tokens per step with at most 64 drafted nodes per step")
    assert names.split() == ["drafter", "whole-file", "unified-diff"]
    assert none.split() == ["none", "1.00", "(0)", "1.00", "(0)"]
    assert not empty


def test_traces_of_another_tokenizer_are_refused(
    agentspec: Callable[..., Result], repository: ScratchRepository, model: Path, tmp_path: Path
) -> None:
    common = ("bench", "replay", "--drafter", "none")
    agentspec(*common, "--git", repository.root, "--tokenizer", model, "--save", tmp_path / "traces.npz")
    other = json.loads((model / "tokenizer.json").read_text())
    other["model"]["merges"] = other["model"]["merges"][:-1]
    (tmp_path / "tokenizer.json").write_text(json.dumps(other))
    result = agentspec(*common, "--traces", tmp_path / "traces.npz", "--tokenizer", tmp_path / "tokenizer.json")
    assert result.exit_code == 2
    assert "another tokenizer" in result.stderr


def test_the_report_needs_nothing_from_elsewhere(
    agentspec: Callable[..., Result], repository: ScratchRepository, model: Path, tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    agentspec("bench", "replay", "--git", repository.root, "--tokenizer", model, "--report", page)
    found: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.append(tag)
            assert not {"src", "href"} & {name for name, _ in attrs}

    Reader().feed(page.read_text())
    assert found.count("svg") == 1
    assert found.count("table") == len(NODE_LIMITS) + len(FORMATS)
    assert "script" not in found


def test_what_cannot_be_replayed_is_said(
    agentspec: Callable[..., Result], repository: ScratchRepository, model: Path, tmp_path: Path
) -> None:
    for arguments, message in [
        ((), "either a repository"),
        (("--git", tmp_path, "--traces", tmp_path), "either a repository"),
        (("--git", tmp_path), "git history"),
        (("--traces", tmp_path / "none.npz"), "does not exist"),
        (("--git", repository.root, "--drafter", "oracle"), "unknown drafter 'oracle'"),
        (("--git", repository.root, "--format", "haiku"), "unknown edit format 'haiku'"),
        (("--git", repository.root, "--message", "no such words"), "no commit that matches 'no such words'"),
        (("--git", repository.root, "--save", tmp_path), "cannot be written"),
        (("--git", repository.root, "--report", tmp_path / "nowhere" / "page.html"), "folder that exists"),
    ]:
        result = agentspec("bench", "replay", "--tokenizer", model, *arguments)
        assert result.exit_code == 2, arguments
        assert message in result.stderr


def test_a_history_without_edits_is_said(agentspec: Callable[..., Result], model: Path, tmp_path: Path) -> None:
    from tests.benchmarking.conftest import ScratchRepository  # noqa: PLC0415

    (tmp_path / "fresh").mkdir()
    fresh = ScratchRepository(tmp_path / "fresh")
    fresh.commit("start", a_py="a = 1\n")
    result = agentspec("bench", "replay", "--tokenizer", model, "--git", fresh.root)
    assert result.exit_code == 2
    assert "no edits to replay" in result.stderr


def test_a_missing_tokenizer_is_said(
    agentspec: Callable[..., Result], repository: ScratchRepository, tmp_path: Path
) -> None:
    result = agentspec("bench", "replay", "--git", repository.root, "--tokenizer", tmp_path)
    assert result.exit_code == 5
    assert "no tokenizer" in result.stderr
