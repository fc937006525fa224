"""Edit formats as drafting sees them: their fixed words, and the places where a text is about to be repeated.

Everything here is text. `FormatTokens` translates it once per tokenizer and, where the edited file's path is part of a
format, once per request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from agentspec.drafters.base import TextCodec

SEPARATOR = -1
"""Between pieces of text that do not follow one another; never drafted."""

_ANY_PATH = "\0"
"""Stands for a path where only the words that hold none are wanted."""

EDIT_KEYS = (
    ("path", "old_string", "new_string"),
    ("file_path", "old_string", "new_string"),
    ("path", "old_str", "new_str"),
    ("path", "old_text", "new_text"),
    ("path", "search", "replace"),
)
"""Names that widespread edit tools give to the path, the text to be replaced and its replacement."""

EDIT_TOOLS = ("edit_file", "Edit", "str_replace_editor", "edit_block", "replace_in_file")
"""A widespread tool for each of `EDIT_KEYS`."""


@dataclass(frozen=True, slots=True)
class Marker:
    """A piece of a format in the surroundings that decide how it is tokenised.

    Attributes:
        before: text before it.
        text: the marker.
        after: text after it.
    """

    before: str
    text: str
    after: str

    def tokens(self, codec: TextCodec) -> NDArray[np.int32] | None:
        """`int32[M]`, the tokens that end where the marker ends; None when no token ends there."""
        tokens = codec.encode(self.before + self.text + self.after)
        end = len(self.before) + len(self.text)
        first, length = None, 0
        for index in range(len(tokens)):
            start, length = length, len(codec.decode(tokens[: index + 1]))
            if first is None and length > len(self.before) and start >= len(self.before) - 1:
                first = index
            if length >= end:
                return np.array(tokens[first : index + 1], np.int32) if length == end and first is not None else None
        return None


@dataclass(frozen=True, slots=True)
class _Pair:
    """Markers of a format that names a text and then its replacement."""

    open: Marker
    echo: Marker
    boundary: Marker
    close: Marker


def _pairs() -> Iterator[_Pair]:
    # Some tokenizers join a line's end to the line, others to the next one's indentation: markers with and without it.
    for end, after in (("\n", "    b"), ("", "\n    b")):
        yield _Pair(
            open=Marker("a\n", f"<<<<<<< SEARCH{end}", after),
            echo=Marker("a\n", f"======={end}", after),
            boundary=Marker("a\n", f"======={end}", after),
            close=Marker("a\n", ">>>>>>> REPLACE", "\n"),
        )
        for _, old, new in EDIT_KEYS:
            yield _Pair(
                open=Marker("<parameter=", f"{old}>{end}", after),
                echo=Marker("<parameter=", f"{new}>{end}", after),
                boundary=Marker("a\n", f"</parameter>\n<parameter={new}>{end}", after),
                close=Marker("a\n", "</parameter>\n</function>\n</tool_call>", "\n"),
            )
            yield _Pair(
                open=Marker("\n<", f"{old}>{end}", after),
                echo=Marker("\n<", f"{new}>{end}", after),
                boundary=Marker("a\n", f"</{old}>\n<{new}>{end}", after),
                close=Marker("a\n", f"</{new}>", "\n"),
            )
    for _, old, new in EDIT_KEYS:
        yield _Pair(
            open=Marker(', "', f'{old}":', ' "a'),
            echo=Marker(', "', f'{new}":', ' "a'),
            boundary=Marker("a\\n", f'", "{new}":', ' "a'),
            close=Marker("a\\n", '"}}\n</tool_call>', "\n"),
        )


LINE_ENDS = ("\n", "\n\n", ")\n", ":\n", ";\n", ",\n", "}\n", ");\n", " {\n", "()\n", "):\n", "]\n")
"""How lines of code end: a tokenizer may join the line break to what is before it."""


def format_pieces(path: str) -> list[str]:
    """The fixed words of the formats around an edit of `path`: each piece ends where free text begins."""
    begin = f"{path}\n```\n<<<<<<< SEARCH\n"
    pieces = [begin]
    for end in LINE_ENDS:
        pieces += [f"a{end}=======\n", f"a{end}>>>>>>> REPLACE\n```\n\n{begin}"]
    for tool, (path_key, old, new) in zip(EDIT_TOOLS, EDIT_KEYS, strict=True):
        call = f'<tool_call>\n{{"name": "{tool}", "arguments": {{"{path_key}": "{path}", "{old}": "'
        tagged = f"<tool_call>\n<function={tool}>\n<parameter={path_key}>\n{path}\n</parameter>\n<parameter={old}>\n"
        pieces += [
            call,
            f'\\n", "{new}": "',
            f'\\n"}}}}\n</tool_call>\n{call}',
            tagged,
            f"\n\n</parameter>\n<parameter={new}>\n",
            f"\n\n</parameter>\n</function>\n</tool_call>\n{tagged}",
            f"\n</{old}>\n<{new}>\n",
            f"\n</{new}>\n",
        ]
    hunks = f"--- a/{path}\n+++ b/{path}\n@@ -1"
    patch = f"*** Begin Patch\n*** Update File: {path}\n@@"
    return [*pieces, hunks, f"```diff\n{hunks}", patch, f"```\n{patch}", "a\n*** End Patch\n"]


def _hunk_markers() -> Iterator[Marker]:
    """What opens a hunk of a patch."""
    for end, after in (("", " -1"), ("", " def"), ("", "\n"), ("\n", " a")):
        yield Marker("a\n", f"@@{end}", after)


@dataclass(frozen=True, slots=True)
class PairTokens:
    """A format's markers in tokens, `int32[M]` each; what they mean is said in `native/echoes.hpp`."""

    open: NDArray[np.int32]
    echo: NDArray[np.int32]
    boundary: NDArray[np.int32]
    close: NDArray[np.int32]
    escaped: bool
    """Whether the texts stand in JSON strings."""


class FormatTokens:
    """The formats in one tokenizer's tokens.

    Args:
        codec: the tokenizer.

    Attributes:
        hunk_tokens: `int32[M]`, last tokens of what opens a hunk of a patch.
        pairs: formats that name a text and then its replacement.
    """

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._fixed_pieces = {
            piece: codec.encode(piece) for piece in format_pieces(_ANY_PATH) if _ANY_PATH not in piece
        }
        self.pairs: list[PairTokens] = []
        hunks = [marker.tokens(codec) for marker in _hunk_markers()]
        last = {int(tokens[-1]) for tokens in hunks if tokens is not None}
        self.hunk_tokens = np.array(sorted(token for token in last if "@" in codec.decode([token])), np.int32)
        known = set()
        for pair in _pairs():
            found = [marker.tokens(codec) for marker in (pair.open, pair.echo, pair.boundary, pair.close)]
            tokens = [np.empty(0, np.int32) if part is None else part for part in found]
            key = (tokens[0].tobytes(), tokens[1].tobytes())
            if not len(tokens[0]) or not len(tokens[1]) or key in known:
                continue
            known.add(key)
            opening, echo, boundary, close = tokens
            self.pairs.append(PairTokens(opening, echo, boundary, close, escaped=pair.open.text.endswith('":')))

    def words(self, path: str) -> NDArray[np.int32]:
        """`int32[M]`: the fixed words of the formats around an edit of `path`, -1 between the pieces."""
        tokens: list[int] = []
        for piece in format_pieces(path):
            tokens += self._fixed_pieces.get(piece) or self._codec.encode(piece)
            tokens.append(SEPARATOR)
        return np.array(tokens, np.int32)

    def fence(self, path: str) -> NDArray[np.int32] | None:
        """`int32[M]`: the path above an opening fence, after which the file itself may come."""
        return Marker("a\n", f"{path}\n```\n", "a").tokens(self._codec)


def find_tokens(text: NDArray[np.int32], part: NDArray[np.int32]) -> int | None:
    """Position of the first occurrence of `part` in `text`; None when there is none."""
    if not len(part) or len(part) > len(text):
        return None
    starts = np.flatnonzero(text[: len(text) - len(part) + 1] == part[0])
    for offset in range(1, len(part)):
        starts = starts[text[starts + offset] == part[offset]]
    return int(starts[0]) if len(starts) else None
