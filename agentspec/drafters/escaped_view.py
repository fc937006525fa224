"""The tokens of a text inside a JSON string, from the text's own tokens.

Tokenising a file of ten thousand tokens anew takes tens of milliseconds. Nearly all its tokens stay what they are,
though: what changes are pieces around line ends, quotes and backslashes, which are short and repeat.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from agentspec.drafters.token_classes import TokenTable, TokenTrait
from agentspec.drafters.views import escaped

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from agentspec.drafters.base import TextCodec

MAX_PIECES = 100_000
"""Pieces remembered at most."""

_SAMPLE = '''import json\n\n
class Reader(Base):\n    """Reads "quoted" text."""\n
    def read(self, path: str, *, encoding="utf-8") -> dict[str, int]:
        with open(path, encoding=encoding) as file:\n\t\treturn json.load(file)[f"a\\tb{path}"]\n\n
if (x && y) { call('\\n', "z"); }\n// end\n'''


class EscapedSpelling:
    """Translates tokens; remembers pieces, so one serves a single repository.

    Args:
        codec: the tokenizer.
        table: its tokens, by traits.
        by_pieces: whether this tokenizer's texts may be cut, see `cuts_hold`.
    """

    def __init__(self, codec: TextCodec, table: TokenTable, by_pieces: bool) -> None:
        self._codec = codec
        self._table = table
        self._by_pieces = by_pieces
        self._pieces: dict[bytes, bytes] = {}

    def spell(self, tokens: NDArray[np.int32]) -> NDArray[np.int32]:
        """`int32[M]`: the text of `tokens` (`int32[L]`) as it stands inside a JSON string."""
        if not self._by_pieces or not len(tokens):
            return self._encode(tokens)
        self._table.cover(int(tokens.max()) + 1)
        traits = self._table.traits[tokens]
        starts = np.append(0, np.flatnonzero(_cuts(traits)) + 1)
        ends = np.append(starts[1:], len(tokens))
        changed = np.logical_or.reduceat(traits & TokenTrait.ESCAPED != 0, starts)
        # As bytes, which are cut, looked up and joined in a fraction of the time that arrays take.
        data, size = np.ascontiguousarray(tokens).tobytes(), tokens.itemsize
        parts = []
        done = 0
        for start, end in zip((size * starts[changed]).tolist(), (size * ends[changed]).tolist(), strict=True):
            piece = data[start:end]
            parts += [data[done:start], self._pieces.get(piece) or self._piece(piece)]
            done = end
        return np.frombuffer(b"".join([*parts, data[done:]]), np.int32)

    def _piece(self, piece: bytes) -> bytes:
        if len(self._pieces) >= MAX_PIECES:
            self._pieces.clear()
        spelled = self._pieces[piece] = self._encode(np.frombuffer(piece, np.int32)).tobytes()
        return spelled

    def _encode(self, tokens: NDArray[np.int32]) -> NDArray[np.int32]:
        return np.array(self._codec.encode(escaped(self._codec.decode(tokens.tolist()))), np.int32)


def cuts_hold(codec: TextCodec, table: TokenTable) -> bool:
    """Whether pieces of a sample have the tokens that they have in the whole.

    They do where text is split into words before it becomes tokens, as byte-level tokenizers split it; not where each
    text gets a prefix of its own.
    """
    tokens = np.array(codec.encode(_SAMPLE), np.int32)
    pieces, whole = (EscapedSpelling(codec, table, by_pieces).spell(tokens) for by_pieces in (True, False))
    return np.array_equal(pieces, whole)


def _cuts(traits: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """`bool[L - 1]`: whether the text may be cut between each token and the next, before and after it is escaped.

    A word with its space begins anew everywhere. So does, behind a letter, whatever is no letter; an escaped line end
    or tab is a letter behind a backslash. A quote gets a backslash before it, and both end before a word.
    """
    before, after = traits[:-1], traits[1:]
    starts_word = after & TokenTrait.STARTS_WORD != 0
    cuts: NDArray[np.bool_] = after & TokenTrait.STARTS_SPACED_WORD != 0
    cuts |= (before & TokenTrait.ENDS_PIECE != 0) & ~starts_word
    cuts |= (before & TokenTrait.ENDS_QUOTED != 0) & starts_word
    return cuts
