"""The words of a prompt's prose: an edit is likely where the code holds the names that the instruction holds."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from agentspec.drafters.views import NUMBERED_LINE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from agentspec.drafters.base import TextCodec

HEAD_TOKENS = 1024
"""The instruction is looked for at the beginning of the prompt..."""
TAIL_TOKENS = 256
"""...and at its end; documents are shown between."""
MAX_WORDS = 400
KEPT_WORDS = 20_000
FENCE = "```"
OPENING = re.compile(r"[\w+-]*\n?")
"""What may come after a fence that opens at the end of a prompt; after a closing one a blank line comes first."""
WORD = re.compile(r"[^\W\d]\w{2,}")


def prose(head: str, tail: str = "") -> str:
    """What is outside fences and numbered views at both ends of a prompt.

    Args:
        head: beginning of the prompt, outside of fences to begin with.
        tail: end of the prompt; it ends outside of fences, or with an opening one.
    """
    after = tail.split(FENCE)
    if len(after) > 1 and OPENING.fullmatch(after[-1]):
        after.pop()
    lines = "\n".join(head.split(FENCE)[::2] + after[::-2]).split("\n")
    return "\n".join(line for line in lines if not NUMBERED_LINE.match(line))


class ProseTokens:
    """Finds the tokens of a prompt's prose; keeps how words are spelt, since most of them come again.

    Args:
        codec: the tokenizer.
    """

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._spell = lru_cache(KEPT_WORDS)(lambda word: codec.encode(f"\n{word} {word}"))

    def of(self, prompt: NDArray[np.int32]) -> NDArray[np.int32]:
        """`int32[M]`: the tokens of the words in a prompt's prose, spelt as at the start and inside of a line."""
        head, rest = prompt[:HEAD_TOKENS], prompt[HEAD_TOKENS:]
        tail = self._codec.decode(rest[-TAIL_TOKENS:].tolist()) if len(rest) else ""
        words = list(dict.fromkeys(WORD.findall(prose(self._codec.decode(head.tolist()), tail))))[:MAX_WORDS]
        return np.array(sorted({token for word in words for token in self._spell(word)}), np.int32)
