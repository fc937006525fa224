"""Answers in a prescribed form and tool calls on the embedded engine: always valid, the same with drafts or without."""

import functools
import json
import re
from dataclasses import replace

import pytest
import xgrammar
from tokenizers import Tokenizer as RustTokenizer
from transformers import PreTrainedTokenizerFast

from agentspec.engines.base import ChatPrompt, OutputFormat, ToolChoice
from agentspec.engines.local.answer_grammar import answer_grammar
from agentspec.engines.local.grammar import Grammars
from agentspec.engines.local.target import Target
from agentspec.engines.local.tokenizer import Tokenizer
from agentspec.errors import InvalidRequestError
from tests.engines.local.running import ask, collect, collect_all, running
from tests.engines.local.scripted_drafters import noisy_oracle
from tests.engines.local.tiny_target import CHAT_TEMPLATE, VOCABULARY, ConstantCost, train_tokenizer

SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["file", "folder"]}, "lines": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["kind", "lines"],
}
TOOLS = [
    {"type": "function", "function": {"name": "look", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "list_files"}},
]
MESSAGES = [{"role": "user", "content": "Look."}]
CHAT = ChatPrompt(MESSAGES, TOOLS)
HOT = {"temperature": 1.0, "max_tokens": 120}
TEMPLATES = {
    "hermes": f"{{# <tool_call> #}}{CHAT_TEMPLATE}",
    "qwen-coder": f"{{# <tool_call> <function= #}}{CHAT_TEMPLATE}",
    "mistral": f"{{# [TOOL_CALLS] #}}{CHAT_TEMPLATE}",
    "mistral-named": f"{{# [TOOL_CALLS] [ARGS] #}}{CHAT_TEMPLATE}",
    "llama": f'{{# "parameters" <|start_header_id|> #}}{CHAT_TEMPLATE}',
    "none": CHAT_TEMPLATE,
}


@functools.cache
def tokenizer_json():
    return train_tokenizer().backend_tokenizer.to_str()


def with_template(tiny, template, special=()):
    """The tiny target with another chat template, and some words as special tokens in place of its last ones."""
    backend = json.loads(tokenizer_json())
    model = backend["model"]
    for place, word in enumerate(special, start=1):
        number = VOCABULARY - place
        old = next(text for text, token in model["vocab"].items() if token == number)
        del model["vocab"][old]
        model["merges"] = [merge for merge in model["merges"] if old not in merge and "".join(merge) != old]
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        backend["added_tokens"].append({"id": number, "content": word, **flags})
    tokenizer = RustTokenizer.from_str(json.dumps(backend))
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="<|end|>")
    wrapped.chat_template = template
    return Target("tiny", tiny.model, Tokenizer(wrapped), ConstantCost())


def grammars_of(target):
    return Grammars(target.tokenizer.wrapped, target.model.vocab_size, target.model.eos_token_ids)


def calls_of(choice):
    """Names and arguments that the deltas of a choice add up to."""
    calls = {}
    for delta in choice.tool_calls:
        call = calls.setdefault(delta["index"], ["", "", ""])
        call[0] += delta.get("id", "")
        call[1] += delta["function"].get("name", "")
        call[2] += delta["function"]["arguments"]
    assert len({call[0] for call in calls.values()}) == len(calls)
    return [(name, json.loads(arguments)) for _, name, arguments in calls.values()]


def without_ids(choice):
    """Calls as they are; how a step's deltas are cut into chunks depends on what was accepted at once."""
    calls = {}
    for delta in choice.tool_calls:
        name, arguments = calls.get(delta["index"], ("", ""))
        calls[delta["index"]] = (name + delta["function"].get("name", ""), arguments + delta["function"]["arguments"])
    return calls


async def both_ways(target, requests):
    """Choices of each request without drafts and with; they must be the same."""
    async with running(target, speculation=False, retained_prefixes=0) as engine:
        plain = await collect_all(engine, requests)
    truths = [choice.tokens for choices in plain for choice in choices]
    drafter = noisy_oracle(truths, target.model.vocab_size)
    async with running(target, drafter=drafter, retained_prefixes=0) as engine:
        drafted = await collect_all(engine, requests)
    accepted = 0
    for mine, other in zip(drafted, plain, strict=True):
        for one, two in zip(mine, other, strict=True):
            assert (one.tokens, one.text, one.reasoning) == (two.tokens, two.text, two.reasoning)
            assert one.finish_reason == two.finish_reason
            assert without_ids(one) == without_ids(two)
            assert one.receipt.speculation
            accepted += sum(one.receipt.accepted.values())
    assert accepted > 0, "the drafts were not put to the test"
    return drafted


async def test_every_answer_fits_its_schema(tiny):
    formats = OutputFormat("json_schema", json.dumps(SCHEMA))
    requests = [ask(id=f"{seed}", seed=seed, output_format=formats, **HOT) for seed in range(12)]
    answers = [json.loads(choices[0].text) for choices in await both_ways(tiny, requests)]
    assert all(set(answer) == set(SCHEMA["properties"]) for answer in answers)
    assert {answer["kind"] for answer in answers} == {"file", "folder"}
    assert all(0 <= answer["lines"] <= 99 for answer in answers)


async def test_every_answer_fits_its_expression(tiny):
    pattern = r"(yes|no), [0-9]{2,4}!"
    requests = [ask(id=f"{seed}", seed=seed, output_format=OutputFormat("regex", pattern), **HOT) for seed in range(12)]
    texts = {choices[0].text for choices in await both_ways(tiny, requests)}
    assert len(texts) > 6
    assert all(re.fullmatch(pattern, text) for text in texts)


async def test_any_object(tiny):
    requests = [ask(id=f"{n}", seed=n, output_format=OutputFormat("json_object"), **HOT) for n in range(6)]
    ended = [choices[0] for choices in await both_ways(tiny, requests) if choices[0].finish_reason == "stop"]
    assert ended
    assert all(isinstance(json.loads(choice.text), dict) for choice in ended)


async def test_an_answer_ends_with_its_form_whatever_end_tokens_mean(tiny):
    request = ask(output_format=OutputFormat("regex", "ab"), ignore_eos=True, max_tokens=50)
    async with running(tiny) as engine:
        [choice] = await collect(engine, request)
    assert (choice.text, choice.finish_reason) == ("ab", "stop")


@pytest.mark.parametrize(
    ("family", "special"),
    [
        *((family, ()) for family in TEMPLATES),
        ("hermes", ("<tool_call>", "</tool_call>")),
        ("mistral", ("[TOOL_CALLS]",)),
        ("mistral-named", ("[TOOL_CALLS]", "[ARGS]")),
    ],
)
async def test_a_call_can_be_asked_for(tiny, family, special):
    target = with_template(tiny, TEMPLATES[family], special)
    assert target.tokenizer.chat.tools.name == ("hermes" if family == "none" else family)
    choices = [ToolChoice(required=True, parallel=False), ToolChoice(required=True, names=("look",), parallel=False)]
    requests = [
        ask(id=f"{seed}-{place}", prompt=CHAT, seed=seed, tool_choice=choice, **HOT)
        for seed in range(4)
        for place, choice in enumerate(choices)
    ]
    names = []
    for request, [choice] in zip(requests, await both_ways(target, requests), strict=True):
        assert choice.text == ""
        if choice.finish_reason == "length":
            continue  # white space without end, of which a random target is fond
        assert choice.finish_reason == "tool_calls"
        [(name, arguments)] = calls_of(choice)
        names.append(name)
        assert not request.tool_choice.names or name == "look"
        if name == "look":
            assert set(arguments) == set(SCHEMA["properties"])
            assert isinstance(arguments["lines"], int)
        else:
            assert arguments == {}
    assert names


TWO_CALLS = {
    "hermes": '<tool_call>\n{"name": "look", "arguments": {"kind": "file", "lines": 1}}\n</tool_call>\n'
    '<tool_call>\n{"name": "list_files", "arguments": {}}\n</tool_call>',
    "qwen-coder": "<tool_call>\n<function=look>\n<parameter=kind>\nfile\n</parameter>\n"
    "<parameter=lines>\n1\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=list_files>\n\n</function>\n</tool_call>",
    "mistral": '[TOOL_CALLS][{"name": "look", "arguments": {"kind": "file", "lines": 1}}, '
    '{"name": "list_files", "arguments": {}}]',
    "mistral-named": '[TOOL_CALLS]look[ARGS]{"kind": "file", "lines": 1}[TOOL_CALLS]list_files[ARGS]{}',
    "llama": '{"name": "look", "parameters": {"kind": "file", "lines": 1}}; {"name": "list_files", "parameters": {}}',
}


@pytest.mark.parametrize("family", TWO_CALLS)
def test_several_calls_are_allowed_unless_one_is_asked_for(tiny, family):
    target = with_template(tiny, TEMPLATES[family])
    for choice, allowed in ((ToolChoice(required=True), True), (ToolChoice(required=True, parallel=False), False)):
        tag = answer_grammar(ask(prompt=CHAT, tool_choice=choice), target.tokenizer.chat)
        matcher = xgrammar.GrammarMatcher(grammars_of(target).compile(tag))
        assert matcher.accept_string(TWO_CALLS[family]) == allowed
        assert matcher.is_completed() == allowed
    parser = target.tokenizer.chat.parser(CHAT, reasoning=False)
    parser.push(TWO_CALLS[family])
    parser.end()
    assert parser.calls == 2


async def test_an_answer_or_calls(tiny):
    """A form for the text does not rule calls out, unless they are not wanted."""
    form = OutputFormat("regex", "[0-9]{3}")
    requests = [
        ask(id=f"{seed}", prompt=CHAT, seed=seed, output_format=form, **{**HOT, "temperature": 3.0})
        for seed in range(30)
    ]
    results = [choices[0] for choices in await both_ways(with_template(tiny, TEMPLATES["hermes"]), requests)]
    texts = [choice.text for choice in results if not choice.tool_calls]
    assert texts
    assert all(re.fullmatch("[0-9]{3}", text) for text in texts)
    assert any(choice.tool_calls for choice in results), "else the seeds are no good"


@pytest.mark.parametrize("family", ["hermes", "qwen-coder", "llama"])
async def test_a_strict_tool_keeps_its_schema_once_it_is_called(tiny, family):
    """Free text goes on until the model opens a call, which a bias makes it do here."""
    target = with_template(tiny, TEMPLATES[family])
    strict = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS[:1]]
    request = ask(prompt=ChatPrompt(MESSAGES, strict), **HOT)
    opening = '{"name": ' if family == "llama" else "<tool_call>"
    tag = answer_grammar(request, target.tokenizer.chat)
    matcher = xgrammar.GrammarMatcher(grammars_of(target).compile(tag))
    assert matcher.accept_string(f"Some text.\n{opening}")
    assert not matcher.accept_string("1")
    request = replace(request, tool_choice=ToolChoice(names=("list_files",)), prompt=CHAT)
    matcher = xgrammar.GrammarMatcher(grammars_of(target).compile(answer_grammar(request, target.tokenizer.chat)))
    call = {"hermes": '\n{"name": "', "qwen-coder": "\n<function=", "llama": '"'}[family]
    assert matcher.accept_string(opening + call)
    assert not matcher.accept_string("look"), "not among those that are allowed"
    assert matcher.accept_string("list_files")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"output_format": OutputFormat("json_schema", '{"type": "nonsense"}')}, "response_format"),
        ({"output_format": OutputFormat("json_schema", "[1]")}, "response_format"),
        ({"output_format": OutputFormat("json_schema", "{")}, "response_format"),
        ({"output_format": OutputFormat("json_schema", '{"$ref": "#/nowhere"}')}, "response_format"),
        ({"output_format": OutputFormat("json_schema", "false")}, "response_format"),
        ({"output_format": OutputFormat("json_schema", " " * 300_000)}, "response_format"),
        ({"output_format": OutputFormat("regex", "((")}, "response_format"),
        ({"tool_choice": ToolChoice(required=True)}, "tool_choice"),
        ({"tool_choice": ToolChoice(required=True, names=("nobody",)), "prompt": CHAT}, "tool_choice"),
    ],
)
async def test_what_cannot_be_fulfilled_is_refused(tiny, fields, param):
    async with running(tiny) as engine:
        with pytest.raises(InvalidRequestError) as refusal:
            await collect(engine, ask(**fields))
        assert refusal.value.param == param
        assert "/project/" not in str(refusal.value), "no place in somebody else's source"
        assert (await collect(engine, ask()))[0].tokens


def rendered(target, messages, tools=None, **how):
    return target.tokenizer.render(ChatPrompt(messages, tools, **how))


HISTORY = [
    {"role": "user", "content": "Look."},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"lines": 1}'}},
            {"id": "call_2", "type": "function", "function": {"name": "list_files", "arguments": ""}},
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "one"},
    {"role": "tool", "tool_call_id": "call_2", "content": "two"},
]


def test_a_template_without_tools_gets_them_as_text(tiny):
    text = rendered(tiny, HISTORY, TOOLS)
    system, user, assistant, answers, last = text.split("<|start|>")[1:]
    assert system.startswith("system\n")
    assert json.dumps(TOOLS[0]) in system
    assert user == "user\nLook.<|end|>\n"
    assert '{"name": "look", "arguments": {"lines": 1}}' in assistant
    assert assistant.count("<tool_call>") == 2
    assert answers.count("<tool_response>") == 2
    assert last == "assistant\n"
    with_system = rendered(tiny, [{"role": "system", "content": "Be brief."}, *HISTORY], TOOLS)
    assert with_system.startswith("<|start|>system\nBe brief.\n\nYou may call these tools")
    assert rendered(tiny, HISTORY[:1]) == "<|start|>user\nLook.<|end|>\n<|start|>assistant\n"


def test_arguments_reach_templates_as_objects(tiny):
    template = (
        "{# <tool_call> #}{% for m in messages %}{% for c in m.tool_calls or () %}"
        "{{ c.function.arguments | tojson }};{% endfor %}{% endfor %}{{ tools | length }}"
    )
    target = with_template(tiny, template)
    broken = [{"role": "assistant", "tool_calls": [{"function": {"name": "look", "arguments": "{oops"}}]}]
    assert rendered(target, HISTORY + broken, TOOLS) == '{"lines": 1};{};{"arguments": "{oops"};2'


def test_ids_of_calls_at_the_length_that_mistral_takes(tiny):
    template = (
        "{# [TOOL_CALLS] #}{% for m in messages %}{{ m.tool_call_id }}"
        "{% for c in m.tool_calls or () %}{{ c.id }} {% endfor %};{% endfor %}"
    )
    target = with_template(tiny, template)
    _, calls, *answers = rendered(target, HISTORY, TOOLS).split(";")[:4]
    assert calls.split() == answers
    assert all(len(call) == 9 and call.isalnum() for call in answers)
    kept = [{"role": "tool", "tool_call_id": "abcDEF123", "content": ""}]
    assert rendered(target, kept) == "abcDEF123;"


REASONING = f"{{# <tool_call> </think> #}}{CHAT_TEMPLATE}".replace("assistant\n{%", "assistant\n{{ opened }}{%")


@pytest.mark.parametrize("opened", ["", "<think>\n"])
async def test_the_form_begins_behind_the_reasoning(tiny, opened):
    target = with_template(tiny, REASONING.replace("#}", "<think> #}", 1))
    assert target.tokenizer.chat.reasons
    prompt = replace(CHAT, template_kwargs={"opened": opened})
    requests = [
        ask(id=f"{seed}", prompt=prompt, seed=seed, tool_choice=ToolChoice(required=True, parallel=False), **HOT)
        for seed in range(8)
    ]
    async with running(target) as engine:
        results = [choices[0] for choices in await collect_all(engine, requests)]
    assert all(choice.text == "" for choice in results)
    for choice in results:
        assert "<think>" not in choice.reasoning
        assert choice.tool_calls or choice.finish_reason == "length"
    if opened:
        assert all(choice.reasoning for choice in results)


def test_an_answer_that_is_begun_for_the_model_needs_no_reasoning(tiny):
    target = with_template(tiny, REASONING.replace("#}", "<think> #}", 1))
    how = {"template_kwargs": {"opened": "<think>\n"}}
    assert rendered(target, MESSAGES, **how).endswith("assistant\n<think>\n")
    assert rendered(target, MESSAGES, answer_prefix="```\n", **how).endswith("<think>\n\n</think>\n\n```\n")
    assert rendered(target, MESSAGES, answer_prefix="```\n").endswith("assistant\n```\n")
