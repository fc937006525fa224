"""Edits from git histories and from recorded chats, as the replay harness's `build_cache.py` reads them.

    python benchmarks/collect_edits.py --mirror MIRROR --out FOLDER \
        --human OWNER/NAME ... --agent OWNER/NAME ... --chat OWNER/NAME ...
    python HARNESS/build_cache.py --tokenizer tokenizer.json --traces-dir FOLDER --mirror MIRROR --out traces.npz

`MIRROR` holds bare git directories, `OWNER+NAME/repo`. The commits are spread over each history; those of agents are
told by the trailer that names one as co-author. A chat is what aider keeps beside the code, in any version of it: the
replies with SEARCH/REPLACE blocks that it applied and committed, verbatim, with the files as they were before.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import re
import subprocess
import sys
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentspec.benchmarking.git_history import MAX_FILE_BYTES, recorded_edits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHAT_FILE = ".aider.chat.history.md"
AGENT = "co-authored-by:.*(claude|codex|copilot|aider)"
"""Trailers of commits that an agent wrote."""
LINES = (20, 2100)
"""Files are taken that have at least and at most so many lines..."""
CHANGED = (2, 200)
"""...of which the edit removes and adds at least and at most so many."""
POOL = 4
"""Commits looked at for each edit that is taken."""

_APPLIED = re.compile(r"^> Applied edit to (.+?)\s*$", re.MULTILINE)
_COMMIT = re.compile(r"^> Commit ([0-9a-f]{7,40}) ", re.MULTILINE)
_SEARCHED = re.compile(r"^<<<<<<< SEARCH\n(.*?)^=======\n", re.MULTILINE | re.DOTALL)


def git(folder: Path, *arguments: str) -> str | None:
    """Output of a git command; None if it failed."""
    result = subprocess.run(["git", f"--git-dir={folder}", *arguments], capture_output=True, check=False)
    return result.stdout.decode(errors="replace") if result.returncode == 0 else None


def changed_lines(before: str, after: str) -> int:
    """Lines that an edit removes and adds."""
    matcher = difflib.SequenceMatcher(None, before.splitlines(), after.splitlines(), autojunk=False)
    return sum(i2 - i1 + j2 - j1 for tag, i1, i2, j1, j2 in matcher.get_opcodes() if tag != "equal")


def commit_edits(folder: Path, name: str, kind: str, count: int) -> Iterator[dict[str, Any]]:
    """Up to `count` edits spread over a history: one of each commit, of reasonable size."""
    message = AGENT if kind == "agent-commit" else ""
    listed = git(folder, "rev-list", "--count", "--no-merges", "-E", "-i", f"--grep={message}", "HEAD")
    every = max(1, int(listed or 0) // (POOL * count))
    taken: set[str] = set()
    for edit in recorded_edits(folder, sys.maxsize, every, message):
        lines, changed = edit.before.text.count("\n"), changed_lines(edit.before.text, edit.after)
        if edit.commit in taken or not LINES[0] <= lines <= LINES[1] or not CHANGED[0] <= changed <= CHANGED[1]:
            continue
        taken.add(edit.commit)
        yield {
            **_heading(name, kind, f"{edit.commit}^", edit.before.path, edit.subject),
            "before": edit.before.text,
            "after": edit.after,
        }
        if len(taken) == count:
            return


def chat_edits(folder: Path, name: str, count: int) -> Iterator[dict[str, Any]]:
    """Up to `count` replies that were applied, from every version of the chat file."""
    versions = (git(folder, "log", "--all", "--format=%H", "--", CHAT_FILE) or "").split()
    known: set[str] = set()
    for version in versions:
        for instruction, reply, applied, commit in replies(git(folder, "show", f"{version}:{CHAT_FILE}") or ""):
            parent = f"{commit}^"
            if int(git(folder, "cat-file", "-s", f"{parent}:{CHAT_FILE}") or MAX_FILE_BYTES) < MAX_FILE_BYTES:
                continue  # the chat would be part of the repository, with this reply or others like it
            files = [(path, git(folder, "show", f"{parent}:{path}")) for path in applied]
            present = [(path, text) for path, text in files if text and len(text) <= MAX_FILE_BYTES]
            searched = _SEARCHED.search(reply)
            edited = [(path, text) for path, text in present if searched and searched[1] in text]
            if reply in known or not edited:
                continue
            known.add(reply)
            yield {
                **_heading(name, "llm-transcript", parent, edited[0][0], instruction),
                "before": edited[0][1],
                "after": git(folder, "show", f"{commit}:{edited[0][0]}"),
                "output": reply,
                "extra_files": [{"path": path, "before": text} for path, text in present if path != edited[0][0]],
            }
            if len(known) == count:
                return


def replies(chat: str) -> Iterator[tuple[str, str, list[str], str]]:
    """Of every applied reply with SEARCH/REPLACE blocks: instruction, text, its files' paths, the commit made of it."""
    for turn in re.split(r"\n\s*\n(?=#### )", chat)[1:]:
        lines = turn.split("\n")
        instruction = [line.removeprefix("####").strip() for line in takewhile(lambda line: line[:4] == "####", lines)]
        pieces = re.split(r"\n((?:> .*\n+)+)", "\n".join(lines[len(instruction) :]) + "\n")
        # Text and what aider said after it, in turns.
        for text, said in zip(pieces[::2], pieces[1::2], strict=False):
            applied, commits = _APPLIED.findall(said), _COMMIT.findall(said)
            if "<<<<<<< SEARCH" in text and "thinking-content" not in text and applied and commits:
                yield "\n".join(instruction), text.strip("\n"), applied, commits[-1]


def _heading(name: str, kind: str, parent: str, path: str, instruction: str) -> dict[str, Any]:
    return {
        "id": hashlib.sha256("\0".join((name, parent, path, instruction)).encode()).hexdigest()[:12],
        "kind": kind,
        "repo": name,
        "commit": parent,
        "path": path,
        "language": Path(path).suffix,
        "licence": "",
        "instruction": instruction,
    }


def main() -> None:
    """Write the three files of edits, and say how many there are of each repository."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mirror", type=Path, required=True, help="folder of OWNER+NAME/repo git directories")
    parser.add_argument("--out", type=Path, required=True, help="folder for the edits")
    parser.add_argument("--each", type=int, default=20, help="commits of each repository, at most")
    parser.add_argument("--replies", type=int, default=30, help="replies of each repository, at most")
    for kind in ("human", "agent", "chat"):
        parser.add_argument(f"--{kind}", nargs="*", default=[], metavar="OWNER/NAME")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "ship_sample.jsonl").touch()
    sources: dict[str, Callable[[Path, str], Iterator[dict[str, Any]]]] = {
        "human_commits": lambda folder, name: commit_edits(folder, name, "human-commit", arguments.each),
        "agent_commits": lambda folder, name: commit_edits(folder, name, "agent-commit", arguments.each),
        "llm_transcripts": lambda folder, name: chat_edits(folder, name, arguments.replies),
    }
    names = (arguments.human, arguments.agent, arguments.chat)
    for (file, edits), of_kind in zip(sources.items(), names, strict=True):
        with (arguments.out / f"{file}.jsonl").open("w") as lines:
            for name in of_kind:
                found = list(edits(arguments.mirror / name.replace("/", "+") / "repo", name))
                lines.writelines(json.dumps(edit) + "\n" for edit in found)
                print(f"{file}: {name}, {len(found)} edits", flush=True)


if __name__ == "__main__":
    main()
