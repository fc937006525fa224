"""Answers whose first words are given: what the model's way of reasoning asks for before them."""

from __future__ import annotations

from agentspec.errors import InvalidRequestError

TAIL_TOKENS = 16
"""Tokens at the end of a rendered prompt among which the mark that opens reasoning is looked for."""

CLOSINGS = {
    "<think>": "</think>",
    "<mm:think>": "</mm:think>",
    "[THINK]": "[/THINK]",
    "◁think▷": "◁/think▷",
}
"""What ends the reasoning that chat templates open, by the mark that opens it."""

FRAMED = frozenset({"cohere_command4", "gpt-oss", "inkling", "kimi_k3", "muse", "response_template"})
"""SGLang's reasoning parsers of models that write answer and reasoning into frames, which are chosen as they write."""


def refuse_framed(reasoning_parser: str | None) -> None:
    """Refuse to begin an answer for a model that must open a frame for it.

    Raises:
        InvalidRequestError: it is such a model.
    """
    if reasoning_parser in FRAMED:
        raise InvalidRequestError(
            f"this needs an answer that is begun for the model, and models of SGLang's reasoning parser "
            f"'{reasoning_parser}' open answers by themselves; use chat completions"
        )


def closing_of(tail: str) -> str | None:
    """What ends the reasoning that the end of a rendered prompt leaves open; None where it leaves none open."""
    stripped = tail.rstrip()
    return next((closing for opening, closing in CLOSINGS.items() if stripped.endswith(opening)), None)
