"""`/v1/edits`, `/v1/apply` and `/v1/feedback`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import httpx
import pytest

from agentspec.engines.base import Chunk, Receipt
from tests.api.test_errors import assert_error
from tests.api.test_repositories import register

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.api.conftest import LiveServer
    from tests.api.scripted_engine import ScriptedEngine

EDITS, APPLY, FEEDBACK = "/v1/edits", "/v1/apply", "/v1/feedback"
OLD = "import os\n\n\ndef add(a, b):\n    return a + b\n"
NEW = "import os\n\n\ndef add(first, second):\n    return first + second\n"
DIFF = """--- a/src/add.py
+++ b/src/add.py
@@ -1,5 +1,5 @@
 import os
 
 
-def add(a, b):
-    return a + b
+def add(first, second):
+    return first + second
"""  # noqa: W293
SKETCH = "# ... existing code ...\n\ndef add(first, second):\n    return first + second\n"
EDIT = {"path": "src/add.py", "content": OLD, "instruction": "Spell the names out."}


def says(text: str, finish: str = "stop") -> list[Chunk]:
    """A script of small pieces, one character each, as the engine gives them when its stop string ends the text."""
    pieces = [Chunk(0, character, (1,)) for character in text]
    return [*pieces, Chunk(0, finish_reason=finish, receipt=Receipt(prompt_tokens=9, completion_tokens=len(text)))]


def ask(http: httpx.Client, path: str, body: dict[str, object]) -> dict[str, object]:
    """The whole answer; a streamed one must say the same."""
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    whole = response.json()
    chunks = events(http.post(path, json=body | {"stream": True}))
    assert "".join(chunk["delta"] for chunk in chunks) == whole["content"]
    assert [chunk["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + [whole["finish_reason"]]
    assert all(("usage" in chunk) == (chunk is chunks[-1]) for chunk in chunks)
    assert chunks[-1]["usage"] == whole["usage"]
    assert {chunk["object"] for chunk in chunks} == {f"{whole['object']}.chunk"}
    assert {chunk["method"] for chunk in chunks} == {whole["method"]}
    return whole


def events(response: httpx.Response) -> list[dict[str, object]]:
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_an_edit_answers_with_the_new_file(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script = lambda request: says(NEW.removesuffix("\n"))
    answer = ask(http, EDITS, EDIT)
    assert answer["content"] == NEW
    assert (answer["object"], answer["output"], answer["method"]) == ("edit", "file", "model")
    assert (answer["path"], answer["finish_reason"]) == ("src/add.py", "stop")
    assert answer["usage"]["prompt_tokens"] == 9
    request = engine.requests[0]
    assert (request.prediction, request.edited_path, request.n) == (OLD, "src/add.py", 1)
    assert (request.sampling.temperature, request.sampling.stop) == (0.0, ("\n```",))
    assert request.prompt.answer_prefix == "src/add.py\n```\n"


@pytest.mark.parametrize(
    ("old", "written", "new"),
    [
        ("a\n", "b", "b\n"),
        ("a\n", "b\n", "b\n"),
        ("a", "b", "b"),
        ("a", "b\n", "b"),
        ("", "b", "b\n"),
        ("a\n", "```", ""),
        ("a\n", "", ""),
        ("a\n", "``", "``\n"),
        ("a\n", "b\n\n", "b\n\n"),
        ("a\r\nb\r\n", "a\nc", "a\r\nc\r\n"),
    ],
)
def test_ends_of_lines_and_files_stay_as_they_were(
    http: httpx.Client, engine: ScriptedEngine, old: str, written: str, new: str
) -> None:
    engine.script = lambda request: says(written)
    assert ask(http, EDITS, EDIT | {"content": old})["content"] == new
    assert "\r" not in str(engine.requests[0].prompt)


def test_a_file_with_fences_gets_a_longer_one(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script = lambda request: says("# Title\n````\ncode\n````")
    assert ask(http, EDITS, EDIT | {"content": "````\ncode\n````\n"})["content"] == "# Title\n````\ncode\n````\n"
    assert engine.requests[0].sampling.stop == ("\n`````",)


@pytest.mark.parametrize(
    ("lines", "written", "new"),
    [
        ((4, 5), "def add(*n):\n    return sum(n)", "import os\n\n\ndef add(*n):\n    return sum(n)\n"),
        ((1, 1), "```", "\n\ndef add(a, b):\n    return a + b\n"),
        ((1, 0), '"""Sums."""', f'"""Sums."""\n{OLD}'),
        ((6, 5), "add(1, 2)", f"{OLD}add(1, 2)\n"),
    ],
)
def test_a_selection_leaves_the_other_lines_alone(
    http: httpx.Client, engine: ScriptedEngine, lines: tuple[int, int], written: str, new: str
) -> None:
    engine.script = lambda request: says(written)
    selection = {"start_line": lines[0], "end_line": lines[1]}
    assert ask(http, EDITS, EDIT | {"selection": selection})["content"] == new
    selected = "".join(OLD.splitlines(keepends=True)[lines[0] - 1 : lines[1]])
    assert engine.requests[0].prediction == (selected or None)
    answer = ask(http, EDITS, EDIT | {"selection": selection, "output": "selection"})
    assert answer["content"] == ("" if written == "```" else f"{written}\n")


def test_lines_behind_a_file_without_a_last_line_feed(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script = lambda request: says("b")
    selection = {"start_line": 2, "end_line": 1}
    assert ask(http, EDITS, EDIT | {"content": "a", "selection": selection})["content"] == "a\nb"


def test_an_edit_as_a_patch(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script = lambda request: says(NEW)
    assert ask(http, EDITS, EDIT | {"output": "patch"})["content"] == DIFF
    engine.script = lambda request: says(OLD)
    assert ask(http, EDITS, EDIT | {"output": "patch"})["content"] == ""


def test_an_answer_that_was_cut_off_says_so(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script = lambda request: says("import os\n", "length")
    selection = {"start_line": 1, "end_line": 1}
    answer = ask(http, EDITS, EDIT | {"selection": selection})
    assert (answer["finish_reason"], answer["content"]) == ("length", "import os"), "no line behind the cut"
    assert ask(http, EDITS, EDIT | {"output": "patch"})["content"] == ""


def test_the_prompt_begins_with_what_stays(http: httpx.Client, engine: ScriptedEngine) -> None:
    one, other = {"path": "a.py", "content": "A = 1\n"}, {"path": "b.py", "content": "B = 2\n"}
    http.post(EDITS, json=EDIT | {"context": [one, other]})
    http.post(EDITS, json=EDIT | {"context": [other, one], "instruction": "Do something else."})
    first, second = (request.prompt.messages[1]["content"] for request in engine.requests)
    common = next(at for at, (x, y) in enumerate(zip(first, second, strict=False)) if x != y)
    assert OLD in first[:common]
    assert first[common:].startswith("Spell the names out.")
    assert engine.requests[0].prompt.messages[0] == engine.requests[1].prompt.messages[0]


def test_receipts_come_when_asked(http: httpx.Client, engine: ScriptedEngine) -> None:
    for path, body in ((EDITS, EDIT), (APPLY, {"content": OLD, "update": DIFF})):
        assert "agentspec" not in http.post(path, json=body).json()
        wanted = http.post(path, json=body | {"agentspec": {"receipt": True, "speculation": False}}).json()
        assert wanted["agentspec"]["receipts"][0]["speculation"] is False
    assert [request.speculation for request in engine.requests] == [True, False]


@pytest.mark.parametrize("kind", [None, "unified_diff"])
def test_a_patch_that_fits_needs_no_model(http: httpx.Client, engine: ScriptedEngine, kind: str | None) -> None:
    answer = ask(http, APPLY, {"content": OLD, "update": DIFF, "format": kind})
    assert (answer["content"], answer["method"], answer["object"]) == (NEW, "exact", "apply")
    assert answer["usage"]["total_tokens"] == 0
    assert engine.requests == []
    crlf = ask(http, APPLY, {"content": OLD.replace("\n", "\r\n"), "update": DIFF})
    assert crlf["content"] == NEW.replace("\n", "\r\n")
    whole = {"path": "src/add.py", "content": OLD, "update": NEW, "format": "whole_file", "output": "patch"}
    patch = ask(http, APPLY, whole)
    assert (patch["content"], patch["method"]) == (DIFF, "exact")


@pytest.mark.parametrize("update", [SKETCH, DIFF.replace("return a", "return  a")])
def test_what_does_not_fit_goes_to_the_model(http: httpx.Client, engine: ScriptedEngine, update: str) -> None:
    engine.script = lambda request: says(NEW)
    answer = ask(http, APPLY, {"content": OLD, "update": update, "instruction": "Spell the names out."})
    assert (answer["content"], answer["method"]) == (NEW, "model")
    prompt = engine.requests[0].prompt.messages[1]["content"]
    assert update in prompt
    assert "Spell the names out." in prompt
    assert engine.requests[0].prediction == OLD


@pytest.fixture
def project(serve: Callable[..., LiveServer], allowed_root: Path) -> Iterator[tuple[LiveServer, httpx.Client, Path]]:
    """A server, a client of it, and a repository registered there."""
    server = serve()
    root = allowed_root / "project"
    (root / "src").mkdir(parents=True)
    (root / "src" / "add.py").write_text(OLD)
    with httpx.Client(base_url=server.url, timeout=10) as http:
        assert register(http, root).status_code == 202
        yield server, http, root


def test_a_file_of_a_repository(project: tuple[LiveServer, httpx.Client, Path]) -> None:
    server, http, root = project
    server.engine.script = lambda request: says(NEW)
    body = {"repository": str(root), "path": "src/add.py", "instruction": "Spell the names out."}
    assert ask(http, EDITS, body)["content"] == NEW
    request = server.engine.requests[0]
    assert (request.prediction, request.edited_path) == (OLD, "src/add.py")
    assert request.repository is not None
    assert ask(http, APPLY, {"repository": str(root), "path": "src/add.py", "update": DIFF})["content"] == NEW
    assert ask(http, EDITS, body | {"content": "unsaved\n"})["content"] == NEW
    assert server.engine.requests[-1].prediction == "unsaved\n", "what the client holds wins"
    assert (root / "src" / "add.py").read_text() == OLD, "nothing is written"


def test_paths_never_leave_the_repository(project: tuple[LiveServer, httpx.Client, Path], tmp_path: Path) -> None:
    _, http, root = project
    (tmp_path / "secret").write_text("secret\n")
    (root.parent / "project-2").mkdir()
    (root.parent / "project-2" / "secret").write_text("secret\n")
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text("secret\n")
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "folder").symlink_to(tmp_path)
    (root / "inside").symlink_to(root / "src")
    (root / "loop").symlink_to(root / "loop")
    (root / "git").symlink_to(root / ".git")
    (root / "binary").write_bytes(b"\xff\0")
    (root / "large").write_bytes(b"x" * 1_000_001)

    def read(path: str) -> httpx.Response:
        return http.post(APPLY, json={"repository": str(root), "path": path, "update": "x"})

    for path in ("../project-2/secret", "link", "folder/secret", "src/../../project-2/secret", ".git/config"):
        assert_error(read(path), 403, "forbidden", "path")
    assert_error(read("git/config"), 403, "forbidden", "path")
    for path in (str(tmp_path / "secret"), "a\0b", "binary", "large"):
        assert_error(read(path), 400, param="path")
    for path in ("missing", "src", ".", "loop", "src/add.py/more", "x" * 300):
        assert_error(read(path), 404, "not_found", "path")
    assert read("inside/add.py").status_code == 200
    assert read("src/../src/add.py").status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (EDITS, {"instruction": "x"}, "content"),
        (EDITS, {"instruction": "x", "path": "a.py"}, "content"),
        (EDITS, {"instruction": "", "content": OLD}, "instruction"),
        (EDITS, {"content": OLD}, "instruction"),
        (EDITS, EDIT | {"output": "selection"}, "output"),
        (EDITS, EDIT | {"output": "html"}, "output"),
        (EDITS, EDIT | {"selection": {"start_line": 1, "end_line": 6}}, "selection"),
        (EDITS, EDIT | {"selection": {"start_line": 3, "end_line": 1}}, "selection"),
        (EDITS, EDIT | {"selection": {"start_line": 0, "end_line": 1}}, "selection.start_line"),
        (APPLY, {"content": OLD}, "update"),
        (APPLY, {"content": OLD, "update": "x", "format": "ed"}, "format"),
        (APPLY, {"content": OLD, "update": "x", "output": "selection"}, "output"),
        (FEEDBACK, {"id": "edit-1", "accepted": True}, "id"),
        (FEEDBACK, {"id": "edit-" + "0" * 32}, "accepted"),
    ],
)
def test_wrong_values_name_their_field(http: httpx.Client, path: str, body: dict[str, object], param: str) -> None:
    assert_error(http.post(path, json=body), 400, param=param)


def test_unknown_models_and_repositories(http: httpx.Client) -> None:
    assert_error(http.post(EDITS, json=EDIT | {"model": "gpt-9"}), 404, "model_not_found", "model")
    assert_error(http.post(EDITS, json=EDIT | {"repository": "repo-0"}), 404, "not_found", "repository")


def test_feedback_changes_metrics_only(serve: Callable[..., LiveServer]) -> None:
    server = serve()
    with httpx.Client(base_url=server.url, timeout=10) as http:
        edit = http.post(EDITS, json=EDIT).json()["id"]
        completion = http.post("/v1/completions", json={"prompt": "x"}).json()["id"]
        answer = http.post(FEEDBACK, json={"id": edit, "accepted": True})
        assert answer.json() == {"object": "feedback", "id": edit, "accepted": True}
        for accepted in (False, True, True):
            http.post(FEEDBACK, json={"id": completion, "accepted": accepted})
        text = http.get("/metrics").text
    assert 'agentspec_feedback_total{kind="edit",outcome="accepted"} 1.0' in text
    assert 'agentspec_feedback_total{kind="completion",outcome="accepted"} 2.0' in text
    assert 'agentspec_feedback_total{kind="completion",outcome="rejected"} 1.0' in text
    assert len(server.engine.requests) == 2
