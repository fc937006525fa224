"""Merging into files that people keep: nothing of theirs is lost."""

from __future__ import annotations

import json
import re
import stat
import tomllib
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentspec.connect.files import merged, render, write
from agentspec.connect.jsonc import merge_json
from agentspec.connect.recipe import ConfigFile
from agentspec.errors import InvalidRequestError

if TYPE_CHECKING:
    from pathlib import Path

ZED = """\
// My settings
{
  "theme": "One Dark", // dark
  /* providers */
  "language_models": {
    "ollama": { "api_url": "http://localhost:11434" },
  },
  "tabs": [1, 2],
}
"""


def without_comments(text: str) -> Any:
    text = re.sub(r"/\*.*?\*/|//[^\n\"]*$", "", text, flags=re.MULTILINE | re.DOTALL)
    return json.loads(re.sub(r",(\s*[}\]])", r"\1", text))


def test_json_with_comments_and_trailing_commas_keeps_them() -> None:
    text = merge_json(
        ZED, {"language_models": {"openai_compatible": {"agentspec": {"api_url": "u"}}}, "theme": "Light"}
    )
    for line in (
        "// My settings",
        "// dark",
        "/* providers */",
        '    "ollama": { "api_url": "http://localhost:11434" },',
    ):
        assert line in text
    assert without_comments(text.replace("/* providers */", "")) == {
        "theme": "Light",
        "language_models": {
            "ollama": {"api_url": "http://localhost:11434"},
            "openai_compatible": {"agentspec": {"api_url": "u"}},
        },
        "tabs": [1, 2],
    }


def test_json_merged_twice_is_merged_once() -> None:
    values = {"models": [{"name": "ours", "url": "u"}], "a": {"b": [1]}}
    once = merge_json('{"models": [{"name": "theirs"}], "a": {}}', values)
    assert merge_json(once, values) == once
    assert json.loads(once)["models"] == [{"name": "ours", "url": "u"}, {"name": "theirs"}]


def test_an_item_of_the_same_name_is_replaced() -> None:
    text = merge_json('[{"name": "ours", "old": 1}, {"name": "theirs"}]', [{"name": "ours", "new": 2}])
    assert json.loads(text) == [{"name": "ours", "new": 2}, {"name": "theirs"}]


@pytest.mark.parametrize("text", ['{"a": 1', '{"a" 1}', "nonsense", "[1]", '{"a": 1,, "b": 2}', '{,"a": 1}'])
def test_what_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        merge_json(text, {"a": 2})


LEAVES = st.none() | st.booleans() | st.integers() | st.text()
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no failure
@given(st.dictionaries(st.text(), VALUES), st.dictionaries(st.text(), VALUES), st.sampled_from([None, 2, 4]))
def test_merged_json_holds_both(theirs: dict[str, Any], ours: dict[str, Any], indent: int | None) -> None:
    result = json.loads(merge_json(json.dumps(theirs, indent=indent), ours))
    assert set(result) == set(theirs) | set(ours)
    for key, value in theirs.items():
        if key not in ours:
            assert result[key] == value
    for key, value in ours.items():
        if key not in theirs or not isinstance(value, dict | list):
            assert result[key] == value


YAML = """\
# mine
name: My assistant
models:
- name: cloud   # the big one
  model: "x"
- name: agentspec
  model: old
"""


def test_yaml_keeps_comments_order_quotes_and_indentation() -> None:
    file = ConfigFile(
        "f", "yaml", {"models": [{"name": "agentspec", "model": "new"}]}, {"name": "Local", "schema": "v1"}
    )
    text = merged(file, YAML)
    for line in ("# mine", "name: My assistant", "- name: cloud   # the big one", '  model: "x"'):
        assert line in text.splitlines()
    assert yaml.safe_load(text) == {
        "name": "My assistant",
        "models": [{"name": "cloud", "model": "x"}, {"name": "agentspec", "model": "new"}],
        "schema": "v1",
    }


TOML = """\
# mine
model = "other" # for now

[model_providers.mine]
base_url = "http://mine"
"""


def test_toml_keeps_comments_and_tables() -> None:
    values = {"model": "ours", "model_provider": "agentspec", "model_providers": {"agentspec": {"base_url": "u"}}}
    text = merged(ConfigFile("f", "toml", values), TOML)
    assert "# mine" in text
    assert "# for now" in text
    assert tomllib.loads(text) == {
        "model": "ours",
        "model_provider": "agentspec",
        "model_providers": {"mine": {"base_url": "http://mine"}, "agentspec": {"base_url": "u"}},
    }


@pytest.mark.parametrize(("form", "text"), [("yaml", "a: [1"), ("yaml", "- 1"), ("toml", "a ="), ("toml", "[a")])
def test_what_cannot_be_parsed_is_refused(form: Any, text: str) -> None:
    with pytest.raises(InvalidRequestError):
        merged(ConfigFile("f", form, {"b": 1}), text)


def test_writing_backs_up_every_time_and_keeps_mode_and_link(tmp_path: Path) -> None:
    real, link = tmp_path / "dotfiles" / "settings.json", tmp_path / "settings.json"
    real.parent.mkdir()
    real.write_text('{"theirs": 1}')
    real.chmod(0o600)
    link.symlink_to(real)
    path, backup = write(ConfigFile(str(link), "json", {"ours": 1}))
    assert path == real
    assert backup is not None
    assert backup.read_text() == '{"theirs": 1}'
    assert link.is_symlink()
    assert json.loads(link.read_text()) == {"ours": 1, "theirs": 1}
    assert stat.S_IMODE(real.stat().st_mode) == 0o600
    _, second = write(ConfigFile(str(link), "json", {"ours": 2}))
    assert second not in {None, backup}
    assert backup.read_text() == '{"theirs": 1}'
    assert write(ConfigFile(str(link), "json", {"ours": 2})) == (real, None)


def test_a_file_that_cannot_be_merged_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("not = = toml")
    with pytest.raises(InvalidRequestError, match="left as it is"):
        write(ConfigFile(str(path), "toml", {"a": 1}))
    assert path.read_text() == "not = = toml"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_is_what_is_shown(tmp_path: Path) -> None:
    file = ConfigFile(str(tmp_path / "new" / "config.yaml"), "yaml", {"a": [{"name": "b"}]})
    path, backup = write(file)
    assert backup is None
    assert path.read_text() == render(file) == "a:\n  - name: b\n"
