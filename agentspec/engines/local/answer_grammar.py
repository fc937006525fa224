"""The grammar of an answer: reasoning, then text in the form that was asked for, or tool calls."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from xgrammar.structural_tag import (
    AnyTextFormat,
    ConstStringFormat,
    JSONSchemaFormat,
    OptionalFormat,
    OrFormat,
    RegexFormat,
    SequenceFormat,
    StarFormat,
    StructuralTag,
    TagFormat,
    TokenFormat,
    TriggeredTagsFormat,
)

from agentspec.engines.base import ChatPrompt
from agentspec.engines.local.answers.parser import THINK, THINK_END
from agentspec.engines.local.answers.tool_format import CallSyntax
from agentspec.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from agentspec.engines.base import GenerationRequest, OutputFormat
    from agentspec.engines.local.answers.tool_format import ToolFormat
    from agentspec.engines.local.chat_format import ChatFormat

LONGEST_DEFINITION = 256 * 1024
"""Characters of a schema or an expression; compiling longer ones would hold up other requests."""

MOST_SPACES = 32
"""White space in a row outside the strings of JSON: enough for any indentation, and an end for models that go on."""

NO_PARAMETERS = {"type": "object", "properties": {}}
"""Schema of a tool that names none, as OpenAI documents it."""


def answer_grammar(
    request: GenerationRequest, chat: ChatFormat, special_tokens: Collection[str] = (), *, reasoning: bool = False
) -> StructuralTag | None:
    """The grammar that a request asks for; None where the model is free.

    Args:
        request: what is asked.
        chat: how the model's conversations are written.
        special_tokens: texts that the tokenizer knows as single tokens with no text of their own.
        reasoning: whether the rendered prompt ends inside the reasoning.

    Raises:
        InvalidRequestError: the format is broken, or a tool is named that is not offered.
    """
    tools = request.callable_tools()
    choice = request.tool_choice
    calls = _CallForms(chat.tools, special_tokens)
    answer = None if request.output_format is None else _answer(request.output_format)
    form: Any = None
    if choice.required:
        form = calls.some(tools, several=choice.parallel)
    elif answer is not None:
        form = OrFormat(elements=[answer, calls.some(tools, several=choice.parallel)]) if tools else answer
    elif choice.names or any(tool["function"].get("strict") for tool in tools):
        form = calls.within_text(tools)
    if form is None:
        return None
    if isinstance(request.prompt, ChatPrompt) and (reasoning or chat.reasons):
        form = _behind_reasoning(form, reasoning)
    return StructuralTag(format=form)


def _answer(output: OutputFormat) -> JSONSchemaFormat | RegexFormat:
    if len(output.definition) > LONGEST_DEFINITION:
        raise InvalidRequestError(
            f"the definition of the format is longer than {LONGEST_DEFINITION} characters", "response_format"
        )
    if output.kind == "regex":
        return RegexFormat(pattern=output.definition)
    schema: Any = {"type": "object"}
    if output.kind == "json_schema":
        try:
            schema = json.loads(output.definition)
        except ValueError as error:
            raise InvalidRequestError(f"the schema is not JSON: {error}", "response_format") from error
    if not isinstance(schema, (dict, bool)):
        raise InvalidRequestError("a JSON schema is an object", "response_format")
    return JSONSchemaFormat(json_schema=schema, max_whitespace_cnt=MOST_SPACES)


class _CallForms:
    """The forms of calls in one family's syntax.

    Args:
        style: of the family.
        special_tokens: texts that the tokenizer knows as single tokens with no text of their own.
    """

    def __init__(self, style: ToolFormat, special_tokens: Collection[str]) -> None:
        self._style = style
        self._special_tokens = special_tokens

    def some(self, tools: Sequence[Mapping[str, Any]], *, several: bool = True) -> SequenceFormat:
        """At least one call, and nothing else."""
        one = OrFormat(elements=[SequenceFormat(elements=self._call(tool)) for tool in tools])
        elements: list[Any] = [one]
        if several:
            separator = {CallSyntax.LISTED: ", ", CallSyntax.NAMED: ""}.get(
                self._style.syntax, "; " if self._style.bare else "\n"
            )
            elements.append(StarFormat(content=SequenceFormat(elements=[*self._literal(separator), one])))
        if self._style.syntax is CallSyntax.LISTED:
            elements = [*self._literal(f"{self._style.opening}["), *elements, *self._literal("]")]
        return SequenceFormat(elements=elements)

    def within_text(self, tools: Sequence[Mapping[str, Any]]) -> TriggeredTagsFormat | None:
        """Text, in which calls keep to their schemas; None where the family's marks are no text."""
        begin = '{"name": ' if self._style.bare else self._style.opening
        if self._style.syntax not in (CallSyntax.JSON, CallSyntax.TAGGED) or begin in self._special_tokens:
            return None
        tags = []
        for tool in tools:
            before, schema, after = self._pieces(tool)
            tags.append(TagFormat(begin=before, content=schema, end=after))
        return TriggeredTagsFormat(triggers=[begin], tags=tags)

    def _call(self, tool: Mapping[str, Any]) -> list[Any]:
        before, schema, after = self._pieces(tool)
        return [*self._literal(before), schema, *self._literal(after)]

    def _pieces(self, tool: Mapping[str, Any]) -> tuple[str, JSONSchemaFormat, str]:
        """What stands before the arguments of a call, their form, and what stands behind."""
        style, name = self._style, tool["function"]["name"]
        schema = tool["function"].get("parameters") or NO_PARAMETERS
        if style.syntax is CallSyntax.TAGGED:
            arguments = JSONSchemaFormat(json_schema=schema, style="qwen_xml", max_whitespace_cnt=MOST_SPACES)
            return f"{style.opening}\n<function={name}>\n", arguments, f"\n</function>\n{style.closing}"
        arguments = JSONSchemaFormat(json_schema=schema, max_whitespace_cnt=MOST_SPACES)
        if style.syntax is CallSyntax.NAMED:
            return f"{style.opening}{name}[ARGS]", arguments, ""
        before, after = f'{{"name": {json.dumps(name)}, "{style.arguments_key}": ', "}"
        if style.closing:
            before, after = f"{style.opening}\n{before}", f"{after}\n{style.closing}"
        return before, arguments, after

    def _literal(self, text: str) -> list[Any]:
        """Exactly this text, its special tokens as such."""
        marks = [mark for mark in (self._style.opening, self._style.closing, *self._style.marks) if mark]
        pieces = re.split("(" + "|".join(map(re.escape, marks)) + ")", text)
        return [
            TokenFormat(token=piece) if piece in self._special_tokens else ConstStringFormat(value=piece)
            for piece in pieces
            if piece
        ]


def _behind_reasoning(form: Any, reasoning: bool) -> SequenceFormat:
    """The form behind the reasoning, which the prompt may have opened."""
    begin = "" if reasoning else f"{THINK}\n"
    thoughts = TagFormat(begin=begin, content=AnyTextFormat(), end=f"{THINK_END}\n\n")
    return SequenceFormat(elements=[thoughts if reasoning else OptionalFormat(content=thoughts), form])
