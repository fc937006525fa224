"""What changes with every request is moved behind what stays, and nothing is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from agentspec.api.stable_prefix import with_stable_prefix
from tests.api.test_errors import CHAT, HELLO

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.api.conftest import LiveServer


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


RULES = said("system", "You are an agent.\nRequest-ID: 17\nBe brief.")


@pytest.mark.parametrize(
    "line",
    [
        "Request-ID: 0a1b",
        "nonce = 12",
        "[session id: 9]",
        "Current time: 12:30",
        "Current date and time: 2026-11-30 12:30",
        "The current date is 2026-11-30.",
        "Today's date: 2026-11-30",
        "x-anthropic-something: abc",
        "  timestamp: 17",
    ],
)
def test_volatile_lines_go_last(line: str) -> None:
    system = said("system", f"You are an agent.\n{line}\nBe brief.")
    assert with_stable_prefix([system, said("user", "hello")]) == [
        said("system", "You are an agent.\nBe brief."),
        said("user", f"hello\n\n{line}"),
    ]


@pytest.mark.parametrize(
    "line",
    ["Be brief.", "Use the time zone of the user.", "Dates: ISO 8601", "time.sleep(1)", "The id: none", "", "Sessions"],
)
def test_other_lines_stay(line: str) -> None:
    messages = [said("system", f"You are an agent.\n{line}"), said("user", "hello")]
    assert with_stable_prefix(messages) == messages


def test_late_system_messages_join_the_turn_behind_them() -> None:
    first, late = said("system", "a"), said("system", "late")
    user, assistant = said("user", "u"), said("assistant", "x")
    joined = said("user", "late\n\nu")
    assert with_stable_prefix([first, user, assistant, late, user]) == [first, user, assistant, joined]
    assert with_stable_prefix([first, user, late]) == [first, said("user", "u\n\nlate")]
    assert with_stable_prefix([first, user, assistant, late]) == [first, user, assistant, said("user", "late")]
    assert with_stable_prefix([user, late, late, assistant, user]) == [
        user,
        assistant,
        said("user", "late\n\nlate\n\nu"),
    ]
    assert with_stable_prefix([first]) == [first]


def test_a_growing_conversation_keeps_its_beginning() -> None:
    late = said("system", "late")
    first = [RULES, said("user", "one"), said("assistant", "1"), late, said("user", "two")]
    second = [*first, said("assistant", "2"), said("user", "three")]
    before, after = with_stable_prefix(first), with_stable_prefix(second)
    assert after[: len(before) - 1] == before[:-1]
    assert after[len(before) - 1]["content"] == "late\n\ntwo", "the volatile line has moved on"
    words = " ".join(message["content"] for message in second).split()
    assert sorted(" ".join(message["content"] for message in after).split()) == sorted(words)


def test_it_can_be_switched_off(serve: Callable[..., LiveServer]) -> None:
    for stable in (True, False):
        server = serve(stable_prefix=stable)
        with httpx.Client(base_url=server.url) as http:
            messages = [RULES, *HELLO]
            assert http.post(CHAT, json={"messages": messages}).status_code == 200
            tokens = http.post("/tokenize", json={"messages": messages}).json()["count"]
        seen = list(server.engine.requests[0].prompt.messages)
        assert (seen == messages) == (not stable)
        assert tokens == sum(len(f"<{message['role']}>{message['content']}") for message in seen)
