"""Edit formats: what each answer says must make the edit when applied."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.benchmarking.formats import FORMATS, VIEW_LINES
from agentspec.benchmarking.git_history import Edit, SourceFile

if TYPE_CHECKING:
    from pathlib import Path


def edit_of(before: str, after: str) -> Edit:
    return Edit("c0ffee", "Do it", SourceFile("app/main.py", "b10b", before), after, ())


texts = st.lists(
    st.sampled_from(["a = 1", "b = 2", "", "\tif x:", "print('\"\\n')", "é\x0c"]), min_size=1, max_size=30
).map(lambda lines: "\n".join(lines) + "\n")
edits = st.tuples(texts, texts).filter(lambda pair: pair[0] != pair[1]).map(lambda pair: edit_of(*pair))


def apply_in_order(before: str, replacements: list[tuple[str, str]]) -> str:
    """Replace each old text by its new one, searching onward from the last replacement."""
    result, rest = "", before
    for old, new in replacements:
        place = rest.index(old)
        result += rest[:place] + new
        rest = rest[place + len(old) :]
    return result + rest


@given(edits)
def test_whole_file_is_the_new_file(edit: Edit) -> None:
    assert FORMATS["whole-file"](edit).output == f"```\n{edit.after}```\n"


@given(edits)
def test_search_replace_blocks_make_the_edit(edit: Edit) -> None:
    pattern = r"app/main\.py\n<<<<<<< SEARCH\n(.*?)=======\n(.*?)>>>>>>> REPLACE\n\n"
    output = FORMATS["search-replace"](edit).output
    assert re.sub(pattern, "", output, flags=re.DOTALL) == ""
    assert apply_in_order(edit.before.text, re.findall(pattern, output, re.DOTALL)) == edit.after


@given(edits)
def test_agent_json_calls_make_the_edit(edit: Edit) -> None:
    calls = re.findall(r"<tool_call>\n(.*)\n</tool_call>", FORMATS["agent-json"](edit).output)
    arguments = [json.loads(call)["arguments"] for call in calls]
    replacements = [(argument["old_string"], argument["new_string"]) for argument in arguments]
    assert apply_in_order(edit.before.text, replacements) == edit.after


@given(edits)
def test_agent_tagged_calls_make_the_edit(edit: Edit) -> None:
    pattern = r"<parameter=old_string>\n(.*?)</parameter>\n<parameter=new_string>\n(.*?)</parameter>"
    replacements = re.findall(pattern, FORMATS["agent-tagged"](edit).output, re.DOTALL)
    assert apply_in_order(edit.before.text, replacements) == edit.after


@settings(max_examples=15, deadline=None)
@given(edits)
def test_unified_diff_applies(tmp_path_factory: pytest.TempPathFactory, edit: Edit) -> None:
    root: Path = tmp_path_factory.mktemp("patch")
    (root / "app").mkdir()
    (root / "app/main.py").write_bytes(edit.before.text.encode())
    patch = FORMATS["unified-diff"](edit).output
    subprocess.run(["git", "apply", "--whitespace=nowarn"], cwd=root, input=patch.encode(), check=True)
    assert (root / "app/main.py").read_bytes().decode() == edit.after


@given(edits)
def test_v4a_patches_make_the_edit(edit: Edit) -> None:
    output = FORMATS["v4a-patch"](edit).output
    head, *hunks = output.removesuffix("*** End Patch\n").split("@@\n")
    assert head == "*** Begin Patch\n*** Update File: app/main.py\n"
    sides = [
        tuple(
            "".join(line[1:] for line in hunk.splitlines(keepends=True) if line[0] in marks) for marks in (" -", " +")
        )
        for hunk in (hunk.replace("\x0c", "") for hunk in hunks)
    ]
    assert apply_in_order(edit.before.text.replace("\x0c", ""), sides) == edit.after.replace("\x0c", "")


@pytest.mark.parametrize("name", FORMATS)
def test_the_prompt_states_path_and_change(name: str) -> None:
    prompt = FORMATS[name](edit_of("a = 1\n", "a = 2\n")).prompt
    assert "app/main.py" in prompt
    assert "Do it" in prompt
    assert "a = 2" not in prompt


@pytest.mark.parametrize("changed", [0, 499, 999])
def test_an_agent_sees_a_numbered_view_around_the_change(changed: int) -> None:
    lines = [f"line{number}" for number in range(1000)]
    before = "\n".join(lines) + "\n"
    lines[changed] = "other"
    view = re.findall(r"^ *(\d+)\t(.*)$", FORMATS["agent-json"](edit_of(before, "\n".join(lines) + "\n")).prompt, re.M)
    assert len(view) == VIEW_LINES
    assert (str(changed + 1), f"line{changed}") in view
    assert all(text == f"line{int(number) - 1}" for number, text in view)
