"""Agents and SDKs: each completes an edit on a scratch repository, connected as `agentspec connect` connects it."""

from __future__ import annotations

import json
import re
from importlib.metadata import version
from typing import TYPE_CHECKING

import anthropic
import openai
import pytest

from tests.clients.agent_script import AFTER, FILE, INSTRUCTION
from tests.clients.conftest import Workplace, executable

if TYPE_CHECKING:
    from tests.api.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.clients

EDIT = "changed a file of a scratch repository"


def number(text: str) -> str:
    """The version in what `--version` prints."""
    found = re.search(r"\d+(\.\d+)+", text)
    return found[0] if found else ""


def tool_turns(engine: ScriptedEngine) -> int:
    """Requests that had tools, after the first one."""
    return sum(bool(getattr(request.prompt, "tools", None)) for request in engine.requests) - 1


@pytest.mark.client("aider", "chat completions", f"{EDIT} (whole-file format) and committed it")
def test_aider(workplace: Workplace, request: pytest.FixtureRequest) -> None:
    aider = executable("aider")
    request.node.client_version = number(workplace.run(aider, "--version"))
    workplace.connect("aider")
    quiet = ("--yes-always", "--no-check-update", "--no-analytics", "--no-gitignore", "--no-show-release-notes")
    workplace.run(aider, *quiet, "--map-tokens", "0", "--message", INSTRUCTION, FILE)
    assert workplace.file == AFTER
    assert len(workplace.run("git", "log", "--oneline").splitlines()) == 2


@pytest.mark.client("aider", "chat completions", f"{EDIT} (search/replace format)")
def test_aider_search_replace(workplace: Workplace, request: pytest.FixtureRequest) -> None:
    aider = executable("aider")
    request.node.client_version = number(workplace.run(aider, "--version"))
    workplace.connect("aider")
    quiet = ("--yes-always", "--no-check-update", "--no-analytics", "--no-gitignore", "--no-show-release-notes")
    more = ("--edit-format", "diff", "--no-auto-commits", "--map-tokens", "0")
    workplace.run(aider, *quiet, *more, "--message", INSTRUCTION, FILE)
    assert workplace.file == AFTER


@pytest.mark.client("Codex CLI", "responses", f"{EDIT} by a tool call")
def test_codex(workplace: Workplace, request: pytest.FixtureRequest) -> None:
    codex = executable("codex")
    request.node.client_version = number(workplace.run(codex, "--version"))
    workplace.connect("codex")
    flags = ("--skip-git-repo-check", "-s", "danger-full-access")
    said = workplace.run(codex, "exec", *flags, INSTRUCTION)
    assert workplace.file == AFTER
    assert "add returns the sum now." in said
    assert tool_turns(workplace.server.engine) == 1


@pytest.mark.client("Claude Code", "messages", f"{EDIT} by two tool calls")
def test_claude_code(workplace: Workplace, request: pytest.FixtureRequest) -> None:
    claude = executable("claude")
    request.node.client_version = number(workplace.run(claude, "--version"))
    workplace.connect("claude-code")
    said = workplace.run(claude, "-p", INSTRUCTION, "--permission-mode", "acceptEdits", "--output-format", "json")
    assert workplace.file == AFTER
    result = json.loads(said)
    assert result["result"] == "add returns the sum now."
    assert result["is_error"] is False
    assert tool_turns(workplace.server.engine) == 2


TOOL = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}


@pytest.mark.client(
    "openai (Python)", "chat completions, responses", "streamed a tool call through both, and the answer to its result"
)
def test_openai_sdk(workplace: Workplace, request: pytest.FixtureRequest) -> None:
    request.node.client_version = version("openai")
    with openai.OpenAI(base_url=f"{workplace.server.url}/v1", api_key="none") as client:
        function = {"name": "apply_patch", "parameters": TOOL}
        messages = [{"role": "user", "content": INSTRUCTION}]
        with client.chat.completions.stream(
            model="scripted-model", messages=messages, tools=[{"type": "function", "function": function}]
        ) as stream:
            message = stream.get_final_completion().choices[0].message
        [call] = message.tool_calls or []
        assert "*** Update File" in json.loads(call.function.arguments)["input"]
        done = {"role": "tool", "tool_call_id": call.id, "content": "Done"}
        answer = client.chat.completions.create(
            model="scripted-model",
            messages=[*messages, message.model_dump(exclude_none=True), done],
            tools=[{"type": "function", "function": function}],
        )
        assert answer.choices[0].message.content == "add returns the sum now."
        with client.responses.stream(
            model="scripted-model", input=INSTRUCTION, tools=[{"type": "function", **function}]
        ) as events:
            response = events.get_final_response()
        [item] = response.output
        assert item.type == "function_call"
        after = client.responses.create(
            model="scripted-model",
            previous_response_id=response.id,
            input=[{"type": "function_call_output", "call_id": item.call_id, "output": "Done"}],
            tools=[{"type": "function", **function}],
        )
        assert after.output_text == "add returns the sum now."


@pytest.mark.client("anthropic (Python)", "messages", "streamed a tool call, and the answer to its result")
def test_anthropic_sdk(workplace: Workplace, request: pytest.FixtureRequest) -> None:
    request.node.client_version = version("anthropic")
    with anthropic.Anthropic(base_url=workplace.server.url, api_key="none") as client:
        tools = [{"name": "apply_patch", "input_schema": TOOL}]
        messages = [{"role": "user", "content": INSTRUCTION}]
        with client.messages.stream(model="scripted-model", max_tokens=1000, messages=messages, tools=tools) as stream:
            message = stream.get_final_message()
        [block] = message.content
        assert block.type == "tool_use"
        assert "*** Update File" in block.input["input"]
        result = {"type": "tool_result", "tool_use_id": block.id, "content": "Done"}
        messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
        answer = client.messages.create(model="scripted-model", max_tokens=1000, messages=messages, tools=tools)
        assert answer.content[0].text == "add returns the sum now."
