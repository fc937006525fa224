"""Calls of custom tools in chat completions: the model calls a function, the client is shown the text alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentspec.api.schemas.tools import custom_input

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agentspec.engines.base import Chunk


def shown_call(call: dict[str, Any], custom_tools: frozenset[str]) -> dict[str, Any]:
    """A complete call as the client is shown it.

    Args:
        call: of a function.
        custom_tools: names of the tools that take free text.
    """
    function = call["function"]
    if function["name"] not in custom_tools:
        return call
    custom = {"name": function["name"], "input": custom_input(function["arguments"])}
    return {"id": call["id"], "type": "custom", "custom": custom}


class CustomCalls:
    """Rewrites the deltas of a stream. The text is escaped while it is written, so it comes with the choice's end.

    Args:
        custom_tools: names of the tools that take free text.
    """

    def __init__(self, custom_tools: frozenset[str]) -> None:
        self._custom_tools = custom_tools
        self._arguments: dict[tuple[int, int], str] = {}

    def shown(self, chunk: Chunk) -> Iterator[Mapping[str, Any]]:
        """The deltas of a chunk as the client is shown them."""
        for delta in chunk.tool_calls:
            function = delta.get("function") or {}
            place = (chunk.index, delta.get("index", 0))
            if (name := function.get("name")) in self._custom_tools:
                self._arguments[place] = ""
                custom = {"name": name, "input": ""}
                yield {"index": place[1], "id": delta.get("id"), "type": "custom", "custom": custom}
            if place in self._arguments:
                self._arguments[place] += function.get("arguments") or ""
            else:
                yield delta
        if chunk.finish_reason is not None:
            for choice, index in [place for place in self._arguments if place[0] == chunk.index]:
                yield {"index": index, "custom": {"input": custom_input(self._arguments.pop((choice, index)))}}
