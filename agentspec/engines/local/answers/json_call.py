"""A tool call that is a JSON object with a name and arguments, read while it is written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from agentspec.engines.local.answers.parts import json_text

if TYPE_CHECKING:
    from collections.abc import Container

    from agentspec.engines.local.answers.parts import CallWriter

NAME_KEYS = frozenset({"name", "function"})
ARGUMENTS_KEYS = frozenset({"arguments", "parameters"})
_SPACE = frozenset(" \t\r\n")


class JsonValue:
    """Follows a JSON object or array to its end.

    Attributes:
        complete: whether it has ended.
        depth: brackets that are open.
        in_string: whether the last character was inside a string.
    """

    def __init__(self) -> None:
        self.complete = False
        self.depth = 0
        self.in_string = False
        self._escaped = False

    def push(self, character: str) -> None:
        """Take note of the next character."""
        if self.in_string:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                self.in_string = False
        elif character == '"':
            self.in_string = True
        elif character in "{[":
            self.depth += 1
        elif character in "}]":
            self.depth -= 1
            self.complete = self.depth <= 0


class JsonCall:
    """One call. Its arguments are passed on as they are written, once its name is known.

    Args:
        writer: told of the call.
        known: names that a call must have to be one; None: any.

    Attributes:
        raw: all that was read.
        complete: whether the object has ended.
        begun: whether it turned out to be a call.
    """

    def __init__(self, writer: CallWriter, known: Container[str] | None = None) -> None:
        self.raw = ""
        self.complete = False
        self.begun = False
        self._writer = writer
        self._known = known
        self._value = JsonValue()
        self._key: str | None = None
        self._opened = False
        self._expects_key = True
        self._piece = ""
        self._in_object = False
        self._name: str | None = None
        self._held = ""

    def push(self, text: str) -> str:
        """Read on; returns what lies behind the object."""
        used = 0
        while used < len(text) and not self.complete:
            self._character(text[used])
            used += 1
        self.raw += text[:used]
        self._flush()
        if self.complete and self._name is not None and self._is_known():
            self._begin()
            self._writer.end_call()
        return text[used:]

    def _character(self, character: str) -> None:
        outer = self._value.depth == 1 and not self._value.in_string
        self._value.push(character)
        if outer and character in ",}":
            self._end_value()
            self.complete = self._value.complete
        elif outer and character == ":" and self._expects_key:
            key = _loaded(self._piece)
            self._key = key if isinstance(key, str) else None
            self._piece, self._expects_key = "", False
        elif not self._opened:
            self._opened = True  # by the brace of the object itself
        elif not (outer and character in _SPACE):
            self._add(character)

    def _add(self, character: str) -> None:
        """One character of a key or a value. Arguments that are no object are known only when they are complete."""
        streams = not self._expects_key and self._key in ARGUMENTS_KEYS
        if streams and (self._in_object or (character == "{" and not self._piece)):
            self._in_object = True
            self._held += character
        else:
            self._piece += character

    def _end_value(self) -> None:
        value = _loaded(self._piece)
        if self._key == "function" and isinstance(value, dict):
            self._name = value.get("name")
            value = next((value[key] for key in ARGUMENTS_KEYS if key in value), None)
            self._held += _arguments(value)
        elif self._key in NAME_KEYS and isinstance(value, str):
            self._name = value
        elif self._key in ARGUMENTS_KEYS:
            self._held += _arguments(value)
        self._key, self._piece = None, ""
        self._expects_key, self._in_object = True, False

    def _flush(self) -> None:
        if self._held and self._name is not None and self._is_known():
            self._begin()
            self._writer.arguments(self._held)
            self._held = ""

    def _begin(self) -> None:
        if not self.begun:
            self.begun = True
            self._writer.begin_call(self._name or "")

    def _is_known(self) -> bool:
        return self._known is None or self._name in self._known


def _arguments(value: object) -> str:
    """Arguments that are complete; JSON that is inside a string once more is taken out of it."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json_text(value)


def _loaded(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None
