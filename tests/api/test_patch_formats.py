"""Patches in every format: applied exactly, or not at all."""

from __future__ import annotations

import difflib
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.api.edits.answer_text import unified_diff
from agentspec.api.edits.diff_stream import SETTLED_LINES, DiffStream
from agentspec.api.edits.lines import split_lines
from agentspec.api.edits.patch_formats import apply_patch, detect_format
from agentspec.api.edits.replacements import PatchMismatchError
from agentspec.api.edits.source_file import SourceFile

if TYPE_CHECKING:
    from pathlib import Path

FILE = """import os


class Sum:
    def add(self, a, b):
        return a + b

    def twice(self, a):
        return a + a


def show(x):
    print(x)
"""
CHANGED = FILE.replace("a + a", "2 * a")

BLOCK = """Here it is.

src/sums.py
```python
<<<<<<< SEARCH
    def twice(self, a):
        return a + a
=======
    def twice(self, a):
        return 2 * a
>>>>>>> REPLACE
```
"""
DIFF = """diff --git a/src/sums.py b/src/sums.py
index 1..2 100644
--- a/src/sums.py
+++ b/src/sums.py
@@ -7,5 +7,5 @@ class Sum:
 
     def twice(self, a):
-        return a + a
+        return 2 * a
 
 
"""  # noqa: W293
BARE_DIFF = DIFF[DIFF.index("--- ") :].replace("@@ -7,5 +7,5 @@ class Sum:", "@@ ... @@")
WRONG_NUMBERS = DIFF.replace("-7,5 +7,5", "-99,2 +99,2")
V4A = """*** Begin Patch
*** Update File: src/sums.py
@@ class Sum:
@@     def twice(self, a):
-        return a + a
+        return 2 * a
*** End Patch
"""
OTHERS = "--- a/other.py\n+++ b/other.py\n@@ -1,1 +1,1 @@\n-nothing\n+something\n"


@pytest.mark.parametrize(
    ("update", "kind"),
    [
        (BLOCK, "search_replace"),
        (DIFF, "unified_diff"),
        (BARE_DIFF, "unified_diff"),
        (WRONG_NUMBERS, "unified_diff"),
        (OTHERS + DIFF, "unified_diff"),
        (f"```diff\n{DIFF}```", "unified_diff"),
        (V4A, "v4a"),
        (V4A.replace("*** Begin Patch\n", ""), "v4a"),
        (CHANGED, "whole_file"),
        (f"src/sums.py\n```python\n{CHANGED}```\n", "whole_file"),
    ],
)
def test_every_format(update: str, kind: str) -> None:
    assert detect_format(update, FILE) == kind
    assert apply_patch(FILE, update, kind, "src/sums.py") == CHANGED


@pytest.mark.parametrize(
    "update",
    [
        "# ... existing code ...\n    def twice(self, a):\n        return 2 * a\n# ... rest of the file\n",
        "// ...\nx\n",
        "<!-- ... -->\nx\n",
        "import os\n... existing code ...\ndef show(x):\n    print(x)\n",
        "    def twice(self, a):\n        return 2 * a\n",
        "import os\n    print(x)\n",
    ],
)
def test_a_part_of_the_file_is_a_sketch(update: str) -> None:
    assert detect_format(update, FILE) == "sketch"


def test_an_ellipsis_of_the_language_is_no_sketch() -> None:
    file = "def f() -> None:\n    ...\n\n\nprint(*f, ...)\n"
    assert detect_format(file.replace("None", "int"), file) == "sketch", "begins otherwise"
    assert detect_format(file.replace("    ...", "    pass"), file) == "whole_file"
    assert detect_format(file, file) == "whole_file"
    assert detect_format("const a = {\n  ...b,\n};\n", "const a = {\n};\n") == "whole_file"


@pytest.mark.parametrize(
    ("update", "kind"),
    [
        (BLOCK.replace("a + a", "a+a"), "search_replace"),
        (BLOCK.replace("=======\n", ""), "search_replace"),
        ("<<<<<<< SEARCH\n=======\nx = 1\n>>>>>>> REPLACE\n", "search_replace"),
        (DIFF.replace("-        return a + a", "-        return b"), "unified_diff"),
        (DIFF.replace("src/", "lib/"), "unified_diff"),
        (OTHERS, "unified_diff"),
        ("@@ ... @@\n-    def nothing\n", "unified_diff"),
        (DIFF.replace("-        return", "*       return"), "unified_diff"),
        (V4A.replace("class Sum:", "class Product:"), "v4a"),
        (V4A.replace("Update", "Delete"), "v4a"),
        (V4A.replace("src/sums.py", "other.py"), "v4a"),
        ("no patch at all", "v4a"),
        ("no patch at all", "unified_diff"),
        ("no patch at all", "search_replace"),
    ],
)
def test_what_does_not_fit_is_refused(update: str, kind: str) -> None:
    with pytest.raises(PatchMismatchError):
        apply_patch(FILE, update, kind, "src/sums.py")


def test_lines_that_occur_twice_need_a_number() -> None:
    file = "x = 1\ny = 2\nx = 1\n"
    with pytest.raises(PatchMismatchError, match="occur 2 times"):
        apply_patch(file, "<<<<<<< SEARCH\nx = 1\n=======\nx = 3\n>>>>>>> REPLACE\n", "search_replace", "")
    numbered = "@@ -3,1 +3,1 @@\n-x = 1\n+x = 3\n"
    assert apply_patch(file, numbered, "unified_diff", "") == "x = 1\ny = 2\nx = 3\n"
    anchored = "*** Begin Patch\n*** Update File: f\n@@ y = 2\n-x = 1\n+x = 3\n*** End Patch\n"
    assert apply_patch(file, anchored, "v4a", "f") == "x = 1\ny = 2\nx = 3\n"
    at_end = "*** Begin Patch\n*** Update File: f\n-x = 1\n+x = 3\n*** End of File\n*** End Patch\n"
    assert apply_patch(file, at_end, "v4a", "f") == "x = 1\ny = 2\nx = 3\n"


def test_parts_in_any_order_but_never_over_one_another() -> None:
    blocks = "<<<<<<< SEARCH\n{}=======\n{}>>>>>>> REPLACE\n"
    swapped = blocks.format("c\n", "C\n") + blocks.format("a\n", "A\n")
    assert apply_patch("a\nb\nc\n", swapped, "search_replace", "") == "A\nb\nC\n"
    overlapping = blocks.format("a\nb\n", "x\n") + blocks.format("b\nc\n", "y\n")
    with pytest.raises(PatchMismatchError, match="same lines"):
        apply_patch("a\nb\nc\n", overlapping, "search_replace", "")


TEXTS = st.lists(st.sampled_from(["a\n", "b\n", "\n", "  a\n", "-b\n", "+c\n", " d\r\n", "\x0c\n"]), max_size=12).map(
    "".join
)
ENDS = st.sampled_from(["", "last"])


@settings(max_examples=300, deadline=None)
@given(TEXTS, TEXTS, ENDS, ENDS, st.integers(0, 3))
def test_any_unified_diff(old: str, new: str, old_end: str, new_end: str, context: int) -> None:
    old, new = old + old_end, new + new_end
    lines = difflib.unified_diff(split_lines(old), split_lines(new), "a/f.py", "b/f.py", n=context)
    diff = "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    if diff:
        assert apply_patch(old, diff, "unified_diff", "f.py") == new


@settings(max_examples=25, deadline=None)
@given(TEXTS, TEXTS, ENDS, ENDS)
@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_git_takes_our_diffs(
    tmp_path_factory: pytest.TempPathFactory, old: str, new: str, old_end: str, new_end: str
) -> None:
    old, new = old + old_end, new + new_end
    diff = unified_diff(SourceFile("f.py", old), new)
    if not diff or not old or not new:
        return
    folder: Path = tmp_path_factory.mktemp("git")
    (folder / "f.py").write_bytes(old.encode())
    command = ["git", "apply", "--whitespace=nowarn", "--unidiff-zero", "-"]
    subprocess.run(command, cwd=folder, input=diff.encode(), check=True)
    assert (folder / "f.py").read_bytes().decode() == new


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_diff_that_is_written_as_the_text_comes(data: st.DataObject) -> None:
    """However the new text is cut into pieces, the diff is the same and makes it of the old one."""
    old = data.draw(
        st.lists(st.sampled_from("abcdefghij"), max_size=40).map(lambda lines: [f"{line}\n" for line in lines])
    )
    new = list(old)
    for _ in range(data.draw(st.integers(0, 4))):
        place = data.draw(st.integers(0, len(new)))
        new[place : place + data.draw(st.integers(0, 2))] = data.draw(
            st.lists(st.sampled_from(["x\n", "y\n"]), max_size=2)
        )
    before, after = "".join(old) + data.draw(ENDS), "".join(new) + data.draw(ENDS)
    size = data.draw(st.integers(1, 20))
    diff = DiffStream("f.py", before)
    written = "".join(diff.push(after[at : at + size]) for at in range(0, len(after), size)) + diff.end()
    assert written == unified_diff(SourceFile("f.py", before), after)
    assert (written == "") == (before == after)
    if written:
        assert apply_patch(before, written, "unified_diff", "f.py") == after


def test_hunks_come_before_the_text_ends() -> None:
    old = [f"line {number}\n" for number in range(40)]
    new = [*old[:3], "new\n", *old[3:30], *old[31:]]
    diff = DiffStream("f.py", "".join(old))
    pieces = [diff.push(line) for line in new]
    first = next(number for number, piece in enumerate(pieces) if piece)
    assert first == 3 + SETTLED_LINES, "as soon as it is certain"
    assert pieces[first].startswith("--- a/f.py\n+++ b/f.py\n@@ -1,6 +1,7 @@\n line 0\n")
    assert diff.end() == ""
    assert sum(piece.count("@@ -") for piece in pieces) == 2
