"""Moving what changes with every request behind what stays, so that the prefix cache survives it.

Some clients write a line into the system prompt that is new each time (a request id, the time), and everything behind
its first letter is then computed again. Some send system messages late in a conversation, which other servers merge
into the first one, with the same effect, and which many chat templates refuse. Nothing is left out: the same words
reach the model, a little later.
"""

from __future__ import annotations

import re
from typing import Any

_SUBJECT = (
    r"x-[\w-]+|nonce|cache[ _-]?buster|(?:request|session|trace|correlation|conversation|message|run)[ _-]?id|"
    r"(?:(?:the )?current |today'?s )?(?:local )?(?:date|time|date and time|datetime|timestamp)"
)
_VOLATILE_LINE = re.compile(rf"\W*(?:{_SUBJECT})\W*(?:[:=]|\bis\b).*", re.IGNORECASE)
"""A whole line that names something which is new with each request."""


def with_stable_prefix(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A conversation whose beginning stays the same from request to request.

    Volatile lines of the first system message go to the end of the last user message. A late system message goes to
    the beginning of the user message that follows it, or to the end of the conversation.

    Args:
        messages: chat messages with text content; system messages at the begin are one already.
    """
    moved = _without_late_system(messages)
    return _with_volatile_lines_last(moved)


def _without_late_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kept: list[dict[str, Any]] = []
    waiting: list[str] = []
    for position, message in enumerate(messages):
        if message["role"] == "system" and position > 0:
            waiting.append(message["content"])
        elif message["role"] == "user" and waiting:
            kept.append({**message, "content": "\n\n".join([*waiting, message["content"]])})
            waiting = []
        else:
            kept.append(message)
    if waiting and kept[-1]["role"] == "user":
        kept[-1] = {**kept[-1], "content": "\n\n".join([kept[-1]["content"], *waiting])}
    elif waiting:
        kept.append({"role": "user", "content": "\n\n".join(waiting)})
    return kept


def _with_volatile_lines_last(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    last_user = max((at for at, message in enumerate(messages) if message["role"] == "user"), default=0)
    if not last_user or messages[0]["role"] != "system":
        return messages
    lines = messages[0]["content"].split("\n")
    volatile = [line for line in lines if _VOLATILE_LINE.fullmatch(line)]
    if not volatile:
        return messages
    stable = "\n".join(line for line in lines if not _VOLATILE_LINE.fullmatch(line))
    asked = "\n".join([messages[last_user]["content"], "", *volatile])
    changed = list(messages)
    changed[0] = {**messages[0], "content": stable}
    changed[last_user] = {**messages[last_user], "content": asked}
    return changed
