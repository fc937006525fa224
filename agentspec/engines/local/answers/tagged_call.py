"""A tool call that is written in tags, one for each parameter, as Qwen3-Coder does; read while it is written.

```
<function=edit_file>
<parameter=path>
src/add.py
</parameter>
</function>
```
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from agentspec.engines.local.answers.parts import json_text
from agentspec.engines.local.stop_strings import overlap

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentspec.engines.local.answers.parts import CallWriter

FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
"""Constants as models of code write them, and as JSON does."""


class TaggedCall:
    """One call, from behind `<function=` on.

    Texts are passed on as they are written; values of other types when they are complete.

    Args:
        writer: told of the call.
        schemas: of the parameters of each tool, by its name.

    Attributes:
        complete: whether the call has ended.
    """

    def __init__(self, writer: CallWriter, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        self.complete = False
        self._writer = writer
        self._schemas = schemas
        self._buffer = ""
        self._properties: Mapping[str, Any] | None = None
        self._parameters = 0
        self._value: _Value | None = None

    def push(self, text: str) -> str:
        """Read on; returns what lies behind the call once it is complete."""
        self._buffer += text
        while not self.complete and self._step():
            pass
        rest = ""
        if self.complete:
            rest, self._buffer = self._buffer, ""
        return rest

    def _step(self) -> bool:
        """Read the next piece; False when more text is needed."""
        if self._properties is None:
            return self._read_name()
        if self._value is not None:
            return self._read_value(self._value)
        text = self._buffer.lstrip()
        if text.startswith(FUNCTION_END):
            self._writer.arguments("}" if self._parameters else "{}")
            self._buffer, self.complete = text.removeprefix(FUNCTION_END), True
            return True
        if text.startswith(PARAMETER) and ">" in text:
            name, _, self._buffer = text.removeprefix(PARAMETER).partition(">")
            self._value = _Value(self._writer, name.strip(), self._properties, first=not self._parameters)
            self._parameters += 1
            return True
        if text and not any(tag.startswith(text) or text.startswith(tag) for tag in (FUNCTION_END, PARAMETER)):
            self._buffer = text[1:]  # no tag: nothing that a call could hold
            return True
        return False

    def _read_name(self) -> bool:
        name, found, rest = self._buffer.partition(">")
        if found:
            name = name.strip()
            self._properties = self._schemas.get(name, {}).get("properties") or {}
            self._writer.begin_call(name)
            self._buffer = rest
        return bool(found)

    def _read_value(self, value: _Value) -> bool:
        rest = value.push(self._buffer)
        self._buffer = rest or ""
        if rest is not None:
            self._value = None
        return rest is not None


class _Value:
    """The value of one parameter; the line feeds next to its tags are not part of it."""

    def __init__(self, writer: CallWriter, name: str, properties: Mapping[str, Any], *, first: bool) -> None:
        self._writer = writer
        self._is_text = _takes_text(properties.get(name))
        self._begun = False
        self._held = ""
        self._text = ""
        writer.arguments(("{" if first else ", ") + json_text(name) + (': "' if self._is_text else ": "))

    def push(self, text: str) -> str | None:
        """Read on; returns what lies behind the value once it is complete."""
        self._held += text
        if not self._begun:
            if not self._held:
                return None
            self._begun = True
            self._held = self._held.removeprefix("\n")
        end = self._held.find(PARAMETER_END)
        if end >= 0:
            self._give(self._held[:end].removesuffix("\n"))
            self._writer.arguments('"' if self._is_text else _converted(self._text))
            return self._held[end + len(PARAMETER_END) :]
        kept = _held_back(self._held)
        self._give(self._held[: len(self._held) - kept])
        self._held = self._held[len(self._held) - kept :]
        return None

    def _give(self, text: str) -> None:
        if self._is_text:
            self._writer.arguments(json_text(text)[1:-1])
        else:
            self._text += text


def _held_back(text: str) -> int:
    """Length of the end of `text` that may belong to the closing tag."""
    return max(overlap(text, tag) for tag in (f"\n{PARAMETER_END}", PARAMETER_END))


def _takes_text(schema: object) -> bool:
    """Whether a parameter takes text: it says so, says nothing, or is not known."""
    if not isinstance(schema, dict) or "type" not in schema:
        return not isinstance(schema, dict) or not {"anyOf", "oneOf", "allOf", "$ref"} & set(schema)
    kinds = schema["type"]
    return "string" in ([kinds] if isinstance(kinds, str) else kinds)


def _converted(text: str) -> str:
    """A value that is no text, as JSON; one that is none after all stays text."""
    stripped = text.strip()
    try:
        json.loads(stripped)
    except ValueError:
        return _PYTHON_WORDS.get(stripped) or json_text(text)
    return stripped
