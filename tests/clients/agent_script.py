"""A model that completes one edit in the format of whatever client asks: `return a - b` becomes `return a + b`."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

from agentspec.engines.base import Chunk, Receipt
from tests.api.scripted_engine import tool_call

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentspec.engines.base import ChatPrompt, GenerationRequest

FILE = "calculator.py"
BEFORE = '"""Sums."""\n\n\ndef add(a, b):\n    return a - b\n'
AFTER = BEFORE.replace("a - b", "a + b")
INSTRUCTION = f"In {FILE}, make add return the sum of its arguments."

PATCH = f"""*** Begin Patch
*** Update File: {FILE}
@@
 def add(a, b):
-    return a - b
+    return a + b
*** End Patch"""


def script(request: GenerationRequest) -> list[Chunk]:
    """The next turn of the conversation, by the tools that are offered and what was done already."""
    prompt = request.prompt
    if isinstance(prompt, str | tuple):
        return _text("return a + b")
    if request.prediction:  # an edit endpoint, which has opened the fence
        return _text(request.prediction.replace("a - b", "a + b"))
    names = {_name(tool) for tool in prompt.tools or ()}
    done = [message for message in prompt.messages if message["role"] == "tool"]
    if "Edit" in names and "Read" in names:
        return _claude_code(prompt, done)
    if names & {"apply_patch", "exec_command", "shell", "shell_command"}:
        return _codex(names, done)
    if "SEARCH" in _all_text(prompt):
        return _text(
            f"{FILE}\n```python\n<<<<<<< SEARCH\n    return a - b\n=======\n    return a + b\n>>>>>>> REPLACE\n```\n"
        )
    return _text(f"{FILE}\n```\n{AFTER}```\n")


def _claude_code(prompt: ChatPrompt, done: Sequence[Mapping[str, Any]]) -> list[Chunk]:
    path = f"{_working_directory(prompt)}/{FILE}"
    if not done:
        return _call("Read", file_path=path)
    if len(done) == 1:
        return _call("Edit", file_path=path, old_string="    return a - b", new_string="    return a + b")
    return _text("add returns the sum now.")


def _codex(names: set[str], done: Sequence[Mapping[str, Any]]) -> list[Chunk]:
    if done:
        return _text("add returns the sum now.")
    if "apply_patch" in names:
        return _call("apply_patch", input=PATCH)
    command = f"apply_patch <<'EOF'\n{PATCH}\nEOF"
    if "exec_command" in names:
        return _call("exec_command", cmd=command)
    if "shell_command" in names:
        return _call("shell_command", command=command)
    return _call("shell", command=["bash", "-lc", command])


def _working_directory(prompt: ChatPrompt) -> str:
    """What Claude Code's system prompt says it is."""
    text = _all_text(prompt)
    for label in ("Primary working directory: ", "Working directory: ", "working directory: "):
        if label in text:
            return text.partition(label)[2].splitlines()[0].strip()
    raise AssertionError("the prompt names no working directory")


def _all_text(prompt: ChatPrompt) -> str:
    return "\n".join(str(message.get("content") or "") for message in prompt.messages)


def _name(tool: Mapping[str, Any]) -> str:
    return str(tool["function"]["name"])


def _text(text: str) -> list[Chunk]:
    pieces = [text[at : at + 12] for at in range(0, len(text), 12)]
    return [*(Chunk(0, piece, (1,)) for piece in pieces), _end("stop")]


def _call(name: str, **arguments: Any) -> list[Chunk]:
    """A tool call whose arguments come in pieces."""
    text = json.dumps(arguments)
    pieces = [text[at : at + 16] for at in range(0, len(text), 16)]
    head = tool_call(0, f"call_{uuid.uuid4().hex}", name=name, arguments="")
    rest = [tool_call(0, arguments=piece) for piece in pieces]
    return [head, *rest, _end("tool_calls")]


def _end(reason: str) -> Chunk:
    receipt = Receipt(900, 800, 40, 8, {"edit": 30}, {"edit": 24}, 0.01, 0.01, 0.1)
    return Chunk(0, finish_reason=reason, receipt=receipt)  # type: ignore[arg-type]
