"""SGLang's parsers are fed one token at a time, however many tokens a step brings."""

import json
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.engines.sglang import chat_front
from agentspec.engines.sglang.chat_front import one_token_at_a_time

PIECES = st.lists(st.sampled_from(["a", " ", "\n", '{"', "}", "<call>", "é", "中", "\N{CAT FACE}"]), max_size=16)
UNFINISHED = "\N{REPLACEMENT CHARACTER}"
REQUEST = SimpleNamespace(separate_reasoning=True, skip_special_tokens=False, chat_template_kwargs=None)


class ByteTokenizer:
    """Tokens are bytes: a character that is not ASCII takes several."""

    is_fast = True

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Sequence[int], **_: bool) -> str:
        return bytes(tokens).decode(errors="replace")


class Serving:
    """SGLang's endpoint as far as the hook reads it; its events are what its parsers were told in each step."""

    reasoning_parser = None

    def __init__(self, *, parses: bool) -> None:
        self.tokenizer_manager = SimpleNamespace(tokenizer=ByteTokenizer())
        self._parses = parses

    def _encoding_output(self) -> None:
        return None

    def _tool_call_parsing_active(self, _request: Any) -> bool:
        return self._parses

    async def step(self, **arguments: Any) -> AsyncIterator[str]:
        offsets, index, text = arguments["stream_offsets"], arguments["index"], arguments["content"]["text"]
        fresh = text[offsets.get(index, 0) :]
        offsets[index] = len(text)
        yield json.dumps([fresh, arguments["finish_reason_type"], arguments["choice_logprobs"]])


async def told(tokens: list[int], sizes: Sequence[int], *, parses: bool = True) -> list[Any]:
    """What SGLang's parsers are told of an answer whose steps bring `sizes` tokens, the last of them again and again.

    SGLang's detokenizer adds no text in a step that ends inside a character.
    """
    serving, offsets, found = Serving(parses=parses), {}, []
    place, text, number = 0, "", 0
    while place < len(tokens):
        start, place = place, min(place + sizes[min(number, len(sizes) - 1)], len(tokens))
        number += 1
        ended = place == len(tokens)
        whole = ByteTokenizer().decode(tokens[:place])
        text = whole if ended or not whole.endswith(UNFINISHED) else text
        step = one_token_at_a_time(
            Serving.step,
            serving,
            content={"text": text, "output_ids": tokens[:place]},
            index=0,
            request=REQUEST,
            stream_offsets=offsets,
            choice_logprobs={"content": list(range(start, place))},
            finish_reason_type="stop" if ended else None,
        )
        found += [json.loads(event) async for event in step]
    return found


def texts(events: list[Any]) -> list[Any]:
    return [(text, reason) for text, reason, _ in events]


def logprobs(events: list[Any]) -> list[int]:
    return [number for _, _, given in events if given for number in given["content"]]


@pytest.fixture(autouse=True)
def _ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_front, "_is_ours", lambda: True)


@given(PIECES, st.lists(st.integers(1, 9), min_size=1, max_size=8), st.binary(max_size=2))
async def test_parsers_are_told_the_same_in_steps_of_any_size(pieces: list[str], sizes: list[int], cut: bytes) -> None:
    tokens = [*"".join(pieces).encode(), *cut, ord(".")]
    one_by_one = await told(tokens, [1])
    assert len(one_by_one) == len(tokens)
    assert "".join(text for text, _ in texts(one_by_one)) == ByteTokenizer().decode(tokens)
    for steps in ([2], [5], [len(tokens)], sizes):
        events = await told(tokens, steps)
        assert texts(events) == texts(one_by_one)
        assert logprobs(events) == list(range(len(tokens)))


async def test_a_stop_string_that_is_cut_off_reaches_no_parser() -> None:
    tokens = list(b"ab</stop>")
    serving, offsets = Serving(parses=True), {}
    step = one_token_at_a_time(
        Serving.step,
        serving,
        content={"text": "ab", "output_ids": tokens},
        index=0,
        request=REQUEST,
        stream_offsets=offsets,
        choice_logprobs=None,
        finish_reason_type="stop",
    )
    events = [json.loads(event) async for event in step]
    assert "".join(text for text, _ in texts(events)) == "ab"
    assert [reason for _, reason in texts(events)] == [None] * 8 + ["stop"]


async def test_text_that_nothing_parses_comes_as_it_came() -> None:
    assert [text for text, _ in texts(await told(list(b"hello there"), [4], parses=False))] == ["hell", "o th", "ere"]
    assert [text for text, _ in texts(await told(list(b"hello"), [4]))] == list("hello")


async def test_servers_of_other_algorithms_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_front, "_is_ours", lambda: False)
    assert [text for text, _ in texts(await told(list(b"hello"), [4]))] == ["hell", "o"]
