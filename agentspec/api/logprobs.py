"""Log-probabilities in the shapes of OpenAI's two APIs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentspec.api.schemas.chat import ChatLogprob, ChatLogprobs, TopLogprob
from agentspec.api.schemas.completions import CompletionLogprobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentspec.engines.base import TokenLogprob

IMPOSSIBLE = -9999.0
"""What OpenAI's API shows for a probability of zero; JSON has no infinity."""

REPLACEMENT_CHARACTER = "\ufffd"


def chat_logprobs(tokens: Sequence[TokenLogprob]) -> ChatLogprobs:
    """Shape of the chat API."""
    return ChatLogprobs(
        content=[
            ChatLogprob(
                token=token.text,
                logprob=max(token.logprob, IMPOSSIBLE),
                bytes=_bytes(token.text),
                top_logprobs=[
                    TopLogprob(token=text, logprob=max(logprob, IMPOSSIBLE), bytes=_bytes(text))
                    for _, text, logprob in token.top
                ],
            )
            for token in tokens
        ]
    )


def completion_logprobs(tokens: Sequence[TokenLogprob], offset: int) -> CompletionLogprobs:
    """Shape of the completions API, where the drawn token is always among the alternatives.

    Args:
        tokens: the tokens of one choice or chunk.
        offset: characters of the choice's text before the first of them.
    """
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.text)
    return CompletionLogprobs(
        tokens=[token.text for token in tokens],
        token_logprobs=[max(token.logprob, IMPOSSIBLE) for token in tokens],
        top_logprobs=[
            {
                **{text: max(logprob, IMPOSSIBLE) for _, text, logprob in token.top},
                token.text: max(token.logprob, IMPOSSIBLE),
            }
            for token in tokens
        ],
        text_offset=offsets,
    )


def _bytes(text: str) -> list[int] | None:
    """UTF-8 of a token's text; None where the token is a part of a character and its bytes are not known."""
    return None if REPLACEMENT_CHARACTER in text else list(text.encode())
