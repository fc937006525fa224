"""Parts of an answer, and how the deltas of tool calls are written."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

ID_CHARACTERS = 9
"""Length of a call's id after its prefix; the templates of one family (Mistral) take no other than this one alone."""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of an answer; one of its fields is set.

    Attributes:
        text: text for the reader.
        reasoning: reasoning before it.
        tool_call: OpenAI's delta of a tool call.
    """

    text: str = ""
    reasoning: str = ""
    tool_call: Mapping[str, Any] | None = None

    @property
    def kind(self) -> int:
        """Place among the kinds, in the order in which readers take them."""
        return 2 if self.tool_call is not None else 1 if self.text else 0

    @property
    def index(self) -> int | None:
        """Index of the call that this belongs to, if it belongs to one."""
        return None if self.tool_call is None else int(self.tool_call["index"])

    def continues(self, other: Part) -> bool:
        """Whether this and `other`, which came just before, are both arguments of one call."""
        if self is other or self.tool_call is None or other.tool_call is None or self.index != other.index:
            return False
        return "id" not in self.tool_call and "id" not in other.tool_call

    def joined(self, behind: Part) -> Part:
        """These arguments and those behind them in one."""
        assert self.tool_call is not None
        assert behind.tool_call is not None
        pieces = [call["function"]["arguments"] for call in (self.tool_call, behind.tool_call)]
        return Part(tool_call={"index": self.index, "function": {"arguments": "".join(pieces)}})


class CallWriter:
    """Collects the parts of an answer: each call has an index and an id of its own, and its name comes first.

    Args:
        id_prefix: begins the ids of calls.
    """

    def __init__(self, id_prefix: str = "call_") -> None:
        self._id_prefix = id_prefix
        self._calls = 0
        self._has_arguments = True
        self._parts: list[Part] = []

    @property
    def calls(self) -> int:
        """Calls begun so far."""
        return self._calls

    def text(self, text: str) -> None:
        """Add text for the reader."""
        if text:
            self._parts.append(Part(text=text))

    def reasoning(self, text: str) -> None:
        """Add reasoning."""
        if text:
            self._parts.append(Part(reasoning=text))

    def begin_call(self, name: str) -> None:
        """Begin a call."""
        head = {
            "index": self._calls,
            "id": self._id_prefix + secrets.token_hex(ID_CHARACTERS)[:ID_CHARACTERS],
            "type": "function",
            "function": {"name": name, "arguments": ""},
        }
        self._calls += 1
        self._has_arguments = False
        self._parts.append(Part(tool_call=head))

    def arguments(self, text: str) -> None:
        """Add to the arguments of the call begun last."""
        if text:
            self._has_arguments = True
            self._parts.append(Part(tool_call={"index": self._calls - 1, "function": {"arguments": text}}))

    def end_call(self) -> None:
        """End the call begun last; one without arguments gets an empty object."""
        if not self._has_arguments:
            self.arguments("{}")

    def take(self) -> list[Part]:
        """The parts since the last time."""
        parts, self._parts = self._parts, []
        return parts


def json_text(value: object) -> str:
    """JSON of a value, as arguments are written."""
    return json.dumps(value, ensure_ascii=False)
