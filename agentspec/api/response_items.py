"""Output items of the Responses API: the events that open, fill and close each kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from agentspec.api.requests import new_id
from agentspec.api.schemas.tools import custom_input

Event = dict[str, Any]


class OutputItem(ABC):
    """An item that is being written.

    Args:
        item_id: id of the item.

    Attributes:
        written: text written into it so far.
    """

    def __init__(self, item_id: str) -> None:
        self._id = item_id
        self.written = ""

    def begin(self) -> list[Event]:
        """Events that open the item."""
        return [{"type": "response.output_item.added", "item": self.item("in_progress")}]

    def write(self, text: str) -> list[Event]:
        """Events of more text."""
        self.written += text
        return [self._event(self._delta, delta=text)]

    def end(self) -> list[Event]:
        """Events that close the item."""
        return [*self._filled(), {"type": "response.output_item.done", "item": self.item("completed")}]

    @abstractmethod
    def item(self, status: str) -> dict[str, Any]:
        """The item as it is now."""

    @abstractmethod
    def _filled(self) -> list[Event]:
        """Events that repeat what was written in full."""

    _delta: ClassVar[str]
    """Event type of more text."""

    def _event(self, kind: str, **fields: Any) -> Event:
        return {"type": kind, "item_id": self._id, **fields}


class _Text(OutputItem):
    """An item of one content part, which holds text."""

    def begin(self) -> list[Event]:
        part = self._event("response.content_part.added", content_index=0, part=self._part(""))
        return [*super().begin(), part]

    def write(self, text: str) -> list[Event]:
        self.written += text
        return [self._event(self._delta, content_index=0, delta=text, **self._extra)]

    def _filled(self) -> list[Event]:
        return [
            self._event(self._done, content_index=0, text=self.written, **self._extra),
            self._event("response.content_part.done", content_index=0, part=self._part(self.written)),
        ]

    @abstractmethod
    def _part(self, text: str) -> dict[str, Any]:
        """The content part."""

    _done: ClassVar[str]
    """Event type of the whole text."""

    _extra: ClassVar[dict[str, Any]]
    """Further fields of events with text."""


class MessageItem(_Text):
    """The text of the answer."""

    _delta = "response.output_text.delta"
    _done = "response.output_text.done"
    _extra: ClassVar[dict[str, Any]] = {"logprobs": []}

    def __init__(self) -> None:
        super().__init__(new_id("msg_"))

    def item(self, status: str) -> dict[str, Any]:
        """The message, with its content once it is complete."""
        content = [self._part(self.written)] if status == "completed" else []
        return {"id": self._id, "type": "message", "role": "assistant", "status": status, "content": content}

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


class ReasoningItem(_Text):
    """Reasoning before the answer."""

    _delta = "response.reasoning_text.delta"
    _done = "response.reasoning_text.done"
    _extra: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        super().__init__(new_id("rs_"))

    def item(self, status: str) -> dict[str, Any]:
        """The reasoning, with its content once it is complete."""
        content = [self._part(self.written)] if status == "completed" else []
        return {"id": self._id, "type": "reasoning", "status": status, "summary": [], "content": content}

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": text}


class FunctionCallItem(OutputItem):
    """A call of a function; its arguments are JSON."""

    _delta = "response.function_call_arguments.delta"

    def __init__(self, call_id: str, name: str) -> None:
        super().__init__(new_id("fc_"))
        self._call_id = call_id
        self._name = name

    def item(self, status: str) -> dict[str, Any]:
        """The call."""
        return {
            "id": self._id,
            "type": "function_call",
            "status": status,
            "call_id": self._call_id,
            "name": self._name,
            "arguments": self.written,
        }

    def _filled(self) -> list[Event]:
        return [self._event("response.function_call_arguments.done", name=self._name, arguments=self.written)]


class CustomCallItem(OutputItem):
    """A call of a custom tool. The model writes its input inside JSON, so it is known when the call is complete."""

    def __init__(self, call_id: str, name: str) -> None:
        super().__init__(new_id("ctc_"))
        self._call_id = call_id
        self._name = name

    def write(self, text: str) -> list[Event]:
        """Nothing yet: the input is still escaped."""
        self.written += text
        return []

    def item(self, status: str) -> dict[str, Any]:
        """The call."""
        return {
            "id": self._id,
            "type": "custom_tool_call",
            "status": status,
            "call_id": self._call_id,
            "name": self._name,
            "input": custom_input(self.written) if status == "completed" else "",
        }

    def _filled(self) -> list[Event]:
        text = custom_input(self.written)
        return [
            self._event("response.custom_tool_call_input.delta", delta=text),
            self._event("response.custom_tool_call_input.done", input=text),
        ]
