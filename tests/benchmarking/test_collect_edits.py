"""Edits from histories and from chats that were kept beside the code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.collect_edits import chat_edits, commit_edits, replies

if TYPE_CHECKING:
    from .conftest import ScratchRepository

BEFORE = "".join(f"value_{number} = {number}\n" for number in range(30))
AFTER = BEFORE.replace("value_7 = 7", "value_7 = 70\nmore = 1")
REPLY = """I raise it.

main.py
```python
<<<<<<< SEARCH
value_7 = 7
=======
value_7 = 70
more = 1
>>>>>>> REPLACE
```"""


def chat(commit: str) -> str:
    return f"""
# aider chat started at 2026-01-01

> Added main.py to the chat.

#### What does it do?

It holds values.

> Tokens: 1k sent.

#### Raise value 7,
#### and add more.

{REPLY}

> Tokens: 1k sent.
> Committing main.py before applying edits.
> Commit 0123456 feat: what was there
> Applied edit to main.py
> Commit {commit} feat: raise
> You can use /undo to undo.

#### thanks

You are welcome.
"""


def test_a_reply_is_what_stands_between_the_instruction_and_the_tool() -> None:
    assert list(replies(chat("abcdef1"))) == [("Raise value 7,\nand add more.", REPLY, ["main.py"], "abcdef1")]


@pytest.mark.parametrize("kept_in_the_repository", [False, True])
def test_a_reply_comes_with_the_files_before_it(repository: ScratchRepository, kept_in_the_repository: bool) -> None:
    earlier = {".aider.chat.history.md": chat("1111111")} if kept_in_the_repository else {}
    repository.commit("start", main_py=BEFORE, **earlier)
    commit = repository.commit("raise", main_py=AFTER)
    repository.commit("the chat", **{".aider.chat.history.md": chat(commit[:7])})
    edits = list(chat_edits(repository.root / ".git", "owner/name", 5))
    if kept_in_the_repository:
        assert edits == [], "the chat itself would be drafted from"
        return
    (edit,) = edits
    assert (edit["path"], edit["before"], edit["after"], edit["output"]) == ("main.py", BEFORE, AFTER, REPLY)
    assert (edit["commit"], edit["extra_files"]) == (f"{commit[:7]}^", [])


def test_commits_are_those_of_who_was_asked_for(repository: ScratchRepository) -> None:
    repository.commit("start", main_py=BEFORE)
    repository.commit("by hand", main_py=AFTER)
    repository.commit("helped\n\nCo-Authored-By: Claude <c@example.org>", main_py=BEFORE)
    repository.commit("one line", main_py=BEFORE + "one = 1\n")
    repository.commit("too much", main_py="".join(f"other_{number} = 1\n" for number in range(300)))
    folder = repository.root / ".git"
    assert [edit["instruction"] for edit in commit_edits(folder, "o/n", "human-commit", 1)] == ["helped"]
    assert [edit["instruction"] for edit in commit_edits(folder, "o/n", "agent-commit", 1)] == ["helped"]
    assert len({edit["id"] for edit in commit_edits(folder, "o/n", "human-commit", 1)}) == 1
