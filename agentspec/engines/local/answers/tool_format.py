"""The ways in which model families write tool calls, and how to know a family by its chat template."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class CallSyntax(Enum):
    """What stands between the marks of a call."""

    JSON = auto()
    """An object with the name and the arguments; calls in tags are understood too."""
    TAGGED = auto()
    """A tag for the function and one for each parameter."""
    LISTED = auto()
    """A list of objects with names and arguments."""
    NAMED = auto()
    """A name with the arguments behind it."""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One family's way of writing calls.

    Attributes:
        name: of the family.
        syntax: of one call.
        opening: stands before a call.
        closing: stands behind it; empty where nothing does.
        separators: characters that may stand between calls.
        bare: whether an answer may begin with a call without its opening.
        arguments_key: what the family calls the arguments.
        id_prefix: begins the ids of calls.
        marks: further words of the family that its tokenizer may hide from readers.
    """

    name: str
    syntax: CallSyntax
    opening: str
    closing: str = ""
    separators: str = " \t\r\n"
    bare: bool = False
    arguments_key: str = "arguments"
    id_prefix: str = "call_"
    marks: tuple[str, ...] = ()


HERMES = ToolFormat("hermes", CallSyntax.JSON, "<tool_call>", "</tool_call>")
QWEN_CODER = ToolFormat("qwen-coder", CallSyntax.TAGGED, "<tool_call>", "</tool_call>")
MISTRAL = ToolFormat("mistral", CallSyntax.LISTED, "[TOOL_CALLS]", id_prefix="")
MISTRAL_NAMED = ToolFormat(
    "mistral-named", CallSyntax.NAMED, "[TOOL_CALLS]", id_prefix="", marks=("[ARGS]", "[CALL_ID]")
)
LLAMA = ToolFormat(
    "llama", CallSyntax.JSON, "<|python_tag|>", separators=" \t\r\n;", bare=True, arguments_key="parameters"
)

_BY_TEMPLATE = (
    (("<tool_call>", "<function="), QWEN_CODER),
    (("<tool_call>",), HERMES),
    (("[TOOL_CALLS]", "[ARGS]"), MISTRAL_NAMED),
    (("[TOOL_CALLS]",), MISTRAL),
    (('"parameters"', "<|start_header_id|>"), LLAMA),
)
"""Words of a chat template that tell its family, those with more words first."""


def tool_format(template: str) -> ToolFormat | None:
    """The format that a chat template asks its model for; None where it asks for none that is known."""
    for words, found in _BY_TEMPLATE:
        if all(word in template for word in words):
            return found
    return None
