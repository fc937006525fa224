"""Reasoning, text and tool calls told apart, however an answer is cut into pieces."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.engines.local.answers.parser import AnswerParser
from agentspec.engines.local.answers.tool_format import HERMES, LLAMA, MISTRAL, QWEN_CODER, tool_format

EDIT = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "text": {"type": ["string", "null"]},
        "line": {"type": "integer"},
        "all": {"type": "boolean"},
        "more": {"anyOf": [{"type": "array"}, {"type": "null"}]},
    },
}
TOOLS = [
    {"type": "function", "function": {"name": "edit", "parameters": EDIT}},
    {"type": "function", "function": {"name": "list_files"}},
]
CODE = 'if a < b:\n    print("<tool_call>", \'}\', "\\n</tool_call>")\n'


def call(name, arguments, key="arguments"):
    return json.dumps({"name": name, key: arguments})


def answer(pieces, chat, **how):
    """What the parts of an answer add up to; also checks the rules for deltas."""
    parser = AnswerParser(TOOLS, chat, **how)
    parts = [part for piece in pieces for part in parser.push(piece)] + parser.end()
    text = "".join(part.text for part in parts)
    reasoning = "".join(part.reasoning for part in parts)
    calls = []
    for part in parts:
        assert sum(map(bool, (part.text, part.reasoning, part.tool_call))) == 1, "no empty parts"
        if part.tool_call is None:
            continue
        function = part.tool_call["function"]
        if "id" in part.tool_call:
            assert part.tool_call["index"] == len(calls)
            assert part.tool_call["type"] == "function"
            assert function["arguments"] == ""
            calls.append([part.tool_call["id"], function["name"], ""])
        else:
            assert part.tool_call["index"] == len(calls) - 1
            assert set(function) == {"arguments"}
            assert function["arguments"]
            calls[-1][2] += function["arguments"]
    assert len({each[0] for each in calls}) == len(calls) == parser.calls
    return text, reasoning, [(name, arguments) for _, name, arguments in calls]


HERMES_CALL = f"<tool_call>\n{call('edit', {'path': 'a.py', 'text': CODE})}\n</tool_call>"
CODER_CALL = (
    "<tool_call>\n<function=edit>\n<parameter=path>\na.py\n</parameter>\n<parameter=text>\n"
    f"{CODE}\n</parameter>\n<parameter=line>\n3\n</parameter>\n<parameter=all>\nTrue\n</parameter>\n"
    "<parameter=more>\n[1, 2]\n</parameter>\n</function>\n</tool_call>"
)
CODER_ARGUMENTS = {"path": "a.py", "text": CODE, "line": 3, "all": True, "more": [1, 2]}
PLAIN = {"path": "a.py", "text": CODE}

CASES = {
    "text only": (HERMES, "Hello.\n", "Hello.\n", []),
    "an unfinished mark is text": (HERMES, "a <tool_", "a <tool_", []),
    "text before a call": (HERMES, f"I edit.\n\n{HERMES_CALL}", "I edit.", [("edit", PLAIN)]),
    "text behind a call": (HERMES, f"{HERMES_CALL}\nDone.", "Done.", [("edit", PLAIN)]),
    "two calls": (HERMES, f"{HERMES_CALL}\n{HERMES_CALL}\n", "", [("edit", PLAIN)] * 2),
    "two objects in one mark": (
        HERMES,
        f"<tool_call>{call('edit', PLAIN)}\n{call('list_files', {})}</tool_call>",
        "",
        [("edit", PLAIN), ("list_files", {})],
    ),
    "no closing mark": (HERMES, f"<tool_call>\n{call('edit', PLAIN)}", "", [("edit", PLAIN)]),
    "arguments first": (
        HERMES,
        '<tool_call>{"arguments": {"path": "a.py"}, "name": "edit"}</tool_call>',
        "",
        [("edit", {"path": "a.py"})],
    ),
    "arguments inside a string": (
        HERMES,
        '<tool_call>{"name": "edit", "arguments": "{\\"path\\": \\"a.py\\"}"}</tool_call>',
        "",
        [("edit", {"path": "a.py"})],
    ),
    "no arguments": (HERMES, '<tool_call>{"name": "list_files"}</tool_call>', "", [("list_files", {})]),
    "null arguments": (
        HERMES,
        '<tool_call>{"name": "list_files", "arguments": null}</tool_call>',
        "",
        [("list_files", {})],
    ),
    "a function inside": (
        HERMES,
        '<tool_call>{"type": "function", "function": {"name": "edit", "arguments": {"line": 1}}}</tool_call>',
        "",
        [("edit", {"line": 1})],
    ),
    "not JSON": (HERMES, "<tool_call>edit it</tool_call>", "<tool_call>edit it</tool_call>", []),
    "JSON without a name": (HERMES, '<tool_call>{"a": 1}</tool_call>', '<tool_call>{"a": 1}</tool_call>', []),
    "tags": (QWEN_CODER, f"I edit.\n{CODER_CALL}", "I edit.", [("edit", CODER_ARGUMENTS)]),
    "two calls in tags": (QWEN_CODER, f"{CODER_CALL}\n{CODER_CALL}", "", [("edit", CODER_ARGUMENTS)] * 2),
    "tags without parameters": (
        QWEN_CODER,
        "<tool_call>\n<function=list_files>\n</function>\n</tool_call>",
        "",
        [("list_files", {})],
    ),
    "a tool nobody knows": (
        QWEN_CODER,
        "<tool_call>\n<function=run>\n<parameter=x>1</parameter>\n</function>\n</tool_call>",
        "",
        [("run", {"x": "1"})],
    ),
    "no JSON for a number": (
        QWEN_CODER,
        "<tool_call><function=edit><parameter=line>three</parameter></function></tool_call>",
        "",
        [("edit", {"line": "three"})],
    ),
    "an answer that is a call": (LLAMA, call("edit", PLAIN, "parameters"), "", [("edit", PLAIN)]),
    "calls with semicolons": (
        LLAMA,
        f"{call('edit', PLAIN, 'parameters')}; {call('list_files', {}, 'parameters')}",
        "",
        [("edit", PLAIN), ("list_files", {})],
    ),
    "behind the mark for code": (
        LLAMA,
        f"<|python_tag|>{call('edit', PLAIN, 'parameters')}",
        "",
        [("edit", PLAIN)],
    ),
    "an answer that is some JSON": (
        LLAMA,
        '{"name": "Ada", "parameters": 1}\n',
        '{"name": "Ada", "parameters": 1}\n',
        [],
    ),
    "a list of calls": (
        MISTRAL,
        f"[TOOL_CALLS][{call('edit', PLAIN)}, {call('list_files', {})}]",
        "",
        [("edit", PLAIN), ("list_files", {})],
    ),
    "names before arguments": (
        MISTRAL,
        f"I edit.[TOOL_CALLS]edit[ARGS]{json.dumps(PLAIN)}[TOOL_CALLS]list_files[CALL_ID]123456789[ARGS]{{}}",
        "I edit.",
        [("edit", PLAIN), ("list_files", {})],
    ),
    "names next to arguments": (MISTRAL, f"[TOOL_CALLS]edit{json.dumps(PLAIN)}", "", [("edit", PLAIN)]),
}


@pytest.mark.parametrize("name", CASES)
def test_every_way_to_write_a_call(name):
    chat, raw, text, calls = CASES[name]
    for pieces in ([raw], list(raw)):
        got_text, reasoning, got = answer(pieces, chat)
        assert (got_text, reasoning) == (text, "")
        assert [(name, json.loads(arguments)) for name, arguments in got] == calls


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(CASES)), st.lists(st.integers(0, 400), max_size=6))
def test_pieces_do_not_matter(name, cuts):
    chat, raw, *_ = CASES[name]
    places = sorted({min(cut, len(raw)) for cut in cuts} | {0, len(raw)})
    pieces = [raw[start:end] for start, end in pairwise(places)]
    assert answer(pieces, chat) == answer([raw], chat)


def test_arguments_come_as_they_are_written():
    for chat, raw in ((HERMES, HERMES_CALL), (QWEN_CODER, CODER_CALL)):
        parser = AnswerParser(TOOLS, chat)
        deltas = [part.tool_call for character in raw for part in parser.push(character)]
        assert deltas[0]["function"]["name"] == "edit"
        assert deltas[1]["function"]["arguments"].startswith("{"), "the opening brace is not lost"
        assert len(deltas) > len(CODE) // 2, "arguments are not kept back"


@pytest.mark.parametrize("cut", range(1, len(HERMES_CALL)))
def test_a_call_that_is_cut_off_leaks_no_marks(cut):
    text, _, calls = answer([HERMES_CALL[:cut]], HERMES)
    assert text in ("", HERMES_CALL[:cut]), "text, as long as it may be some"
    assert cut < len("<tool_call>") or text == ""
    for name, arguments in calls:
        assert name == "edit"
        assert json.dumps(PLAIN).startswith(arguments)


@pytest.mark.parametrize(
    ("raw", "how", "expected"),
    [
        ("<think>\nhm\n</think>\n\nYes.", {"reasons": True}, ("Yes.", "hm", [])),
        ("hm\n</think>\n\nYes.", {"reasons": True, "reasoning": True}, ("Yes.", "hm", [])),
        ("hm", {"reasons": True, "reasoning": True}, ("", "hm", [])),
        ("No reasons.", {"reasons": True}, ("No reasons.", "", [])),
        ("<th", {"reasons": True}, ("<th", "", [])),
        (" <think>", {"reasons": False}, (" <think>", "", [])),
        ("a <think> b", {"reasons": True}, ("a <think> b", "", [])),
        (f"<think>hm</think>\n{HERMES_CALL}", {"reasons": True}, ("", "hm", [("edit", json.dumps(PLAIN))])),
        (f"<think>hm\n{HERMES_CALL}", {"reasons": True}, ("", "hm", [("edit", json.dumps(PLAIN))])),
        ("<think>a <tool_call> is a mark</think>x", {"reasons": True}, ("x", "a <tool_call> is a mark", [])),
        ("<think>a <tool_call>", {"reasons": True}, ("", "a <tool_call>", [])),
    ],
)
def test_reasoning(raw, how, expected):
    for pieces in ([raw], list(raw)):
        assert answer(pieces, HERMES, **how) == expected


def test_without_tools_nothing_is_a_call():
    assert answer([HERMES_CALL], None) == (HERMES_CALL, "", [])


def test_families_are_known_by_their_templates():
    assert tool_format("{{ '<tool_call>' }} {{ '<function=' }}") is QWEN_CODER
    assert tool_format("<tool_call>\n{...}") is HERMES
    assert tool_format("[TOOL_CALLS]") is MISTRAL
    assert tool_format('<|start_header_id|> {"name": ..., "parameters": ...}') is LLAMA
    assert tool_format("{{ message.content }}") is None
