"""Tells reasoning, text and tool calls apart while an answer is written.

Nothing that may turn out to be a mark is passed on before that is certain, and nothing is passed on twice; so the parts
of a streamed answer add up to those of a whole one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentspec.engines.local.answers.calls import calls_behind
from agentspec.engines.local.answers.parts import CallWriter
from agentspec.engines.local.answers.tagged_call import FUNCTION
from agentspec.engines.local.stop_strings import overlap

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentspec.engines.local.answers.calls import Calls
    from agentspec.engines.local.answers.parts import Part
    from agentspec.engines.local.answers.tool_format import ToolFormat

THINK, THINK_END = "<think>", "</think>"


class AnswerParser:
    """Parses one answer.

    Args:
        tools: OpenAI's definitions of the tools that the model was offered.
        tool_format: how the model writes calls; None: it writes none.
        reasons: whether the model may reason first, between its tags.
        reasoning: whether the prompt has opened the reasoning already.
    """

    def __init__(
        self,
        tools: Sequence[Mapping[str, Any]],
        tool_format: ToolFormat | None,
        *,
        reasons: bool = False,
        reasoning: bool = False,
    ) -> None:
        self._schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
        self._format = tool_format
        self._writer = CallWriter(tool_format.id_prefix if tool_format else "")
        self._buffer = ""
        self._reasoning = reasoning
        self._may_reason = reasons
        self._at_start = True
        self._strips = False
        self._calls: Calls | None = None
        self._calls_before = 0

    @property
    def calls(self) -> int:
        """Calls begun so far."""
        return self._writer.calls

    @property
    def in_call(self) -> bool:
        """Whether a call has been opened and not been closed."""
        return self._calls is not None

    def push(self, text: str) -> list[Part]:
        """The parts that `text` makes certain."""
        self._buffer += text
        while self._read():
            pass
        return self._writer.take()

    def end(self) -> list[Part]:
        """The parts left at the end of the answer."""
        if self._calls is not None:
            self._writer.text(self._calls.end())
        elif self._reasoning:
            self._writer.reasoning(self._buffer.rstrip())
        elif not (self._strips and self._buffer.isspace()):
            self._writer.text(self._buffer)
        self._buffer = ""
        return self._writer.take()

    def _read(self) -> bool:
        """Read the next piece of the buffer; False when more text is needed."""
        if self._calls is not None:
            rest = self._calls.push(self._buffer)
            self._buffer = rest or ""
            if rest is None:
                return False
            self._calls, self._strips = None, self._writer.calls > self._calls_before
            return bool(rest)
        if self._reasoning:
            return self._read_reasoning()
        return self._read_start() if self._at_start or self._strips else self._read_text()

    def _read_reasoning(self) -> bool:
        """Up to the end of the reasoning, or to a call that is made without one."""
        if self._at_start:
            self._buffer = self._buffer.lstrip()
            self._at_start = not self._buffer
        opening = self._format.opening if self._format else ""
        start, mark = _first(self._buffer, (THINK_END, opening))
        behind = self._buffer[start + len(mark) :]
        if mark == THINK_END:
            self._writer.reasoning(self._buffer[:start].rstrip())
            self._buffer, self._reasoning, self._strips = behind, False, True
            return True
        if mark:
            call = behind.lstrip()
            if not call or (len(call) < len(FUNCTION) and FUNCTION.startswith(call)):
                return self._give_reasoning(len(self._buffer[:start].rstrip()))
            if call[0] in "{[" or call.startswith(FUNCTION):
                self._writer.reasoning(self._buffer[:start].rstrip())
                self._reasoning = False
                return self._open(start, mark)
            self._give_reasoning(start + len(mark))
            return True
        return self._give_reasoning(len(self._buffer) - _held_back(self._buffer, (THINK_END, opening)))

    def _give_reasoning(self, length: int) -> bool:
        self._writer.reasoning(self._buffer[:length])
        self._buffer = self._buffer[length:]
        return False

    def _read_start(self) -> bool:
        """Where text may begin, or something that only an answer begins with."""
        text = self._buffer.lstrip()
        if not text:
            return False
        if self._at_start and self._may_reason:
            if text.startswith(THINK):
                self._buffer, self._reasoning = text.removeprefix(THINK), True
                self._may_reason = False
                return True
            if THINK.startswith(text):
                return False
        if self._format is not None and self._format.bare and text.startswith("{"):
            return self._open(len(self._buffer) - len(text), "")
        if self._strips:
            self._buffer = text
        self._at_start = self._strips = False
        return True

    def _read_text(self) -> bool:
        """Up to a call."""
        if self._format is None:
            self._writer.text(self._buffer)
            self._buffer = ""
            return False
        start, mark = _first(self._buffer, (self._format.opening,))
        if mark:
            self._writer.text(self._buffer[:start].rstrip())
            return self._open(start, mark)
        kept = _held_back(self._buffer, (self._format.opening,))
        self._writer.text(self._buffer[: len(self._buffer) - kept])
        self._buffer = self._buffer[len(self._buffer) - kept :]
        return False

    def _open(self, start: int, mark: str) -> bool:
        assert self._format is not None
        self._at_start = False
        self._calls_before = self._writer.calls
        self._calls = calls_behind(mark, self._format, self._schemas, self._writer)
        self._buffer = self._buffer[start + len(mark) :]
        return True


def _first(text: str, marks: Sequence[str]) -> tuple[int, str]:
    """Where the first of some marks begins, and which it is; the length of the text and "" where there is none."""
    found = [(start, mark) for mark in marks if mark and (start := text.find(mark)) >= 0]
    return min(found, default=(len(text), ""))


def _held_back(text: str, marks: Sequence[str]) -> int:
    """Length of the end of `text` that may belong to a mark, with the white space before it."""
    begun = max((overlap(text, mark) for mark in marks if mark), default=0)
    return len(text) - len(text[: len(text) - begun].rstrip())
