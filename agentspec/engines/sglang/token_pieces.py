"""Where the tokens of a growing text end.

Runs inside SGLang's HTTP process, but knows nothing of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentspec.engines.local.detokenizer import Detokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class TokenPieces:
    """Follows one text, of which any number of tokens may be added at once.

    What it says of a token does not depend on which others came with it: the ends are those that the text would have
    had one after the other if its tokens had come one by one.

    Args:
        decode: text of token ids.
        lead: an ordinary token, behind which the first one is decoded; decoders write the first token of a sequence
            in another way than those behind a prompt.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], lead: int) -> None:
        self._detokenizer = Detokenizer(decode)
        self._detokenizer.push(lead)
        self._tokens = 0
        self._end = 0
        self._waiting: list[int] = []

    def push(self, text: str, tokens: Sequence[int], *, ended: bool) -> list[int]:
        """The lengths that `text` had after each token that it holds in full and that was not reported yet.

        A token that only begins a character has the end of the one before it. One whose text is not there yet is
        reported with a later call.

        Args:
            text: all of it so far.
            tokens: likewise, int[N].
            ended: whether nothing more comes; what is left is reported then, and there is at least one end.
        """
        for token in tokens[self._tokens :]:
            self._end += len(self._detokenizer.push(token))
            self._waiting.append(self._end)
        self._tokens = len(tokens)
        if ended:
            ends, self._waiting = [min(end, len(text)) for end in self._waiting[:-1]], []
            return [*ends, len(text)]
        there = sum(end <= len(text) for end in self._waiting)
        ends, self._waiting = self._waiting[:there], self._waiting[there:]
        return ends
