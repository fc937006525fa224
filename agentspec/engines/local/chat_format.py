"""What a model's chat template expects of messages, and what its answers are made of."""

from __future__ import annotations

import hashlib
import json
import string
from typing import TYPE_CHECKING, Any

from agentspec.engines.base import arguments_object
from agentspec.engines.local.answers.parser import THINK, THINK_END, AnswerParser
from agentspec.engines.local.answers.tool_format import HERMES, MISTRAL, MISTRAL_NAMED, ToolFormat, tool_format

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agentspec.engines.base import ChatPrompt

_INSTRUCTIONS = """You may call these tools, each with the arguments that its JSON schema describes:
<tools>
{tools}
</tools>
To call one, write its name and its arguments as JSON between these marks, and nothing behind them:
<tool_call>
{{"name": "the tool's name", "arguments": {{"argument": "value"}}}}
</tool_call>"""
"""Tells of tools in the Hermes format where the model's own template does not."""

_SHORT_ID = 9
"""Mistral's templates take ids of calls only at this length, out of letters and digits."""


class ChatFormat:
    """How one model's conversations are written.

    Args:
        template: its chat template; templates for tools have precedence where there are several.

    Attributes:
        tools: how the model writes tool calls.
        reasons: whether it may reason before it answers.
    """

    def __init__(self, template: str) -> None:
        known = tool_format(template)
        self.tools: ToolFormat = known or HERMES
        self.reasons = THINK in template and THINK_END in template
        self._knows_tools = known is not None

    def messages(self, prompt: ChatPrompt) -> list[dict[str, Any]]:
        """Messages as the template expects them: arguments as objects, ids at the length that it takes.

        A template that does not know of tools gets them, their calls and their answers as text.
        """
        messages = [_with_objects(message) for message in prompt.messages]
        if not self._knows_tools:
            return _with_tools_as_text(messages, prompt.tools or ())
        if self.tools in (MISTRAL, MISTRAL_NAMED):
            messages = [_with_short_ids(message) for message in messages]
        return messages

    def offered(self, prompt: ChatPrompt) -> list[dict[str, Any]] | None:
        """The tools for the template; None where it does not know of tools, or none are offered."""
        if not self._knows_tools or not prompt.tools:
            return None
        return [dict(tool) for tool in prompt.tools]

    def is_reasoning(self, rendered: str) -> bool:
        """Whether a rendered prompt ends inside the reasoning."""
        return self.reasons and rendered.rstrip().endswith(THINK)

    @property
    def marks(self) -> tuple[str, ...]:
        """Words that the parser must see, although the tokenizer may hide them from readers."""
        return (self.tools.opening, self.tools.closing, *self.tools.marks, THINK, THINK_END)

    def parser(self, prompt: ChatPrompt, *, reasoning: bool) -> AnswerParser | None:
        """A parser for one answer; None where it can only be text.

        Args:
            prompt: what is answered.
            reasoning: whether the rendered prompt ends inside the reasoning.
        """
        if not prompt.tools and not self.reasons:
            return None
        tools = prompt.tools or ()
        return AnswerParser(tools, self.tools if tools else None, reasons=self.reasons, reasoning=reasoning)


def _with_objects(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message whose calls have their arguments as objects, which most templates write as JSON themselves."""
    changed = dict(message)
    if message.get("tool_calls"):
        changed["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": arguments_object(call["function"]["arguments"])}}
            for call in message["tool_calls"]
        ]
    return changed


def _with_short_ids(message: Mapping[str, Any]) -> dict[str, Any]:
    changed = dict(message)
    if message.get("tool_call_id"):
        changed["tool_call_id"] = _short_id(message["tool_call_id"])
    if message.get("tool_calls"):
        changed["tool_calls"] = [{**call, "id": _short_id(call.get("id") or "")} for call in message["tool_calls"]]
    return changed


def _short_id(call_id: str) -> str:
    if len(call_id) == _SHORT_ID and set(call_id) <= set(string.ascii_letters + string.digits):
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:_SHORT_ID]


def _with_tools_as_text(messages: Iterable[dict[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    written: list[dict[str, Any]] = []
    behind_answer = False
    for message in messages:
        is_answer = message["role"] == "tool"
        if is_answer and behind_answer:
            written[-1]["content"] += f"\n{_answer_text(message)}"
        elif is_answer:
            written.append({"role": "user", "content": _answer_text(message)})
        elif message.get("tool_calls"):
            written.append({"role": message["role"], "content": _calls_text(message)})
        else:
            written.append(message)
        behind_answer = is_answer
    if tools:
        instructions = _INSTRUCTIONS.format(tools="\n".join(json.dumps(tool) for tool in tools))
        if written and written[0]["role"] == "system":
            written[0] = {**written[0], "content": f"{written[0]['content']}\n\n{instructions}"}
        else:
            written.insert(0, {"role": "system", "content": instructions})
    return written


def _answer_text(message: Mapping[str, Any]) -> str:
    return f"<tool_response>\n{message.get('content') or ''}\n</tool_response>"


def _calls_text(message: Mapping[str, Any]) -> str:
    texts = [message.get("content") or ""]
    for call in message["tool_calls"]:
        function = {key: call["function"][key] for key in ("name", "arguments")}
        texts.append(f"{HERMES.opening}\n{json.dumps(function)}\n{HERMES.closing}")
    return "\n".join(text for text in texts if text)
