"""A run of tool calls behind their opening, in each family's syntax."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Protocol

from agentspec.engines.local.answers.json_call import JsonCall, JsonValue
from agentspec.engines.local.answers.tagged_call import FUNCTION, TaggedCall
from agentspec.engines.local.answers.tool_format import CallSyntax

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentspec.engines.local.answers.parts import CallWriter
    from agentspec.engines.local.answers.tool_format import ToolFormat

Schemas = dict[str, "Mapping[str, Any]"]
"""JSON schemas of the parameters of each tool, by its name."""

_NAME = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*(?=\{)")
_MAYBE_NAME = re.compile(r"\s*[\w.-]*\s*(?:\[[^{]*)?")


class Calls(Protocol):
    """Reads the calls behind one opening."""

    def push(self, text: str) -> str | None:
        """Read on; returns what lies behind the calls once they have ended, None before."""

    def end(self) -> str:
        """The answer has ended: what was read and is no call after all."""


def calls_behind(opening: str, tool_format: ToolFormat, schemas: Schemas, writer: CallWriter) -> Calls:
    """A reader for what follows `opening`, which is empty where a bare object begins an answer."""
    if tool_format.syntax in (CallSyntax.LISTED, CallSyntax.NAMED):
        return NamedCalls(opening, writer)
    return MarkedCalls(opening, tool_format, schemas, writer)


class MarkedCalls:
    """Calls between an opening and a closing mark, as JSON objects or in tags."""

    def __init__(self, opening: str, tool_format: ToolFormat, schemas: Schemas, writer: CallWriter) -> None:
        self._opening = opening
        self._format = tool_format
        self._schemas = schemas
        self._writer = writer
        self._known = None if opening else frozenset(schemas)
        self._buffer = ""
        self._call: JsonCall | TaggedCall | None = None
        self._read_any = False

    def push(self, text: str) -> str | None:
        """See `Calls.push`."""
        self._buffer += text
        while True:
            if self._call is None:
                rest = self._between()
                if rest is not None or self._call is None:
                    return rest
            if not self._read(self._call):
                return None
            if isinstance(self._call, JsonCall) and not self._call.begun:
                raw, self._call = self._call.raw, None
                self._writer.text(self._opening + raw)
                return self._buffer
            self._call, self._read_any, self._opening = None, True, ""

    def end(self) -> str:
        """See `Calls.end`. A call that was cut off before its name is known is left out: it is marks only."""
        if isinstance(self._call, JsonCall) and not self._call.begun and self._known is not None:
            return self._call.raw
        rest = self._buffer.strip(self._format.separators)
        return "" if self._call is not None or self._format.closing.startswith(rest) else rest

    def _read(self, call: JsonCall | TaggedCall) -> bool:
        """Read on in a call; whether it is complete."""
        self._buffer = call.push(self._buffer)
        return call.complete

    def _between(self) -> str | None:
        """Between calls: begin the next one, or return what lies behind the last."""
        text = self._buffer.lstrip(self._format.separators)
        closing = self._format.closing
        if text.startswith("{"):
            self._call = JsonCall(self._writer, self._known)
        elif text.startswith(FUNCTION):
            self._call = TaggedCall(self._writer, self._schemas)
            text = text.removeprefix(FUNCTION)
        elif closing and text.startswith(closing):
            return text.removeprefix(closing)
        elif text and not (FUNCTION.startswith(text) or closing.startswith(text)):
            if self._read_any:
                return self._buffer
            self._writer.text(self._opening)
            return self._buffer
        else:
            return None
        self._buffer = text
        return None


class NamedCalls:
    """Mistral's calls: a list of objects, or a name and its arguments."""

    def __init__(self, opening: str, writer: CallWriter) -> None:
        self._opening = opening
        self._writer = writer
        self._buffer = ""
        self._in_list = False
        self._call: JsonCall | None = None
        self._arguments: JsonValue | None = None

    def push(self, text: str) -> str | None:
        """See `Calls.push`."""
        self._buffer += text
        if self._arguments is None and not self._in_list and not self._begin():
            return None if _MAYBE_NAME.fullmatch(self._buffer) else self._refuse()
        return self._read_list() if self._in_list else self._read_arguments()

    def end(self) -> str:
        """See `Calls.end`. Whatever is left belongs to a call that was cut off."""
        return ""

    def _begin(self) -> bool:
        stripped = self._buffer.lstrip()
        if stripped.startswith("[") and not "[ARGS]".startswith(stripped[:6]):
            self._buffer, self._in_list = stripped[1:], True
        elif named := _NAME.match(self._buffer):
            self._writer.begin_call(named[1])
            self._buffer, self._arguments = self._buffer[named.end() :], JsonValue()
        else:
            return False
        return True

    def _refuse(self) -> str:
        self._writer.text(self._opening)
        return self._buffer

    def _read_arguments(self) -> str | None:
        assert self._arguments is not None
        for used, character in enumerate(self._buffer, start=1):
            self._arguments.push(character)
            if self._arguments.complete:
                self._writer.arguments(self._buffer[:used])
                return self._buffer[used:]
        self._writer.arguments(self._buffer)
        self._buffer = ""
        return None

    def _read_list(self) -> str | None:
        while True:
            if self._call is None:
                text = self._buffer.lstrip(" \t\r\n,")
                self._buffer = text
                if not text:
                    return None
                if not text.startswith("{"):
                    return text.removeprefix("]")
                self._call = JsonCall(self._writer)
            self._buffer = self._call.push(self._buffer)
            if not self._call.complete:
                return None
            self._call = None
