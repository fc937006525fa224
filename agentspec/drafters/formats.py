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


def _echo_markers() -> Iterator[tuple[Marker, Marker]]:
    yield Marker("a\n", "<<<<<<< SEARCH\n", "    b"), Marker("a\n", "=======\n", "    b")
    for _, old, new in EDIT_KEYS:
        yield Marker(', "', f'{old}":', ' "a'), Marker(', "', f'{new}":', ' "a')
        yield Marker("<parameter=", f"{old}>\n", "a"), Marker("<parameter=", f"{new}>\n", "a")
        yield Marker("\n<", f"{old}>\n", "a"), Marker("\n<", f"{new}>\n", "a")


def format_words(path: str) -> str:
    """The fixed words of the formats around an edit of `path`, as they would follow one another."""
    block = f"{path}\n```\n<<<<<<< SEARCH\n=======\n>>>>>>> REPLACE\n```\n\n"
    parts = [block, block]
    for tool, (path_key, old, new) in zip(EDIT_TOOLS, EDIT_KEYS, strict=True):
        arguments = f'"arguments": {{"{path_key}": "{path}", "{old}": "\\n", "{new}": "\\n"}}'
        parts.append(f'<tool_call>\n{{"name": "{tool}", {arguments}}}\n</tool_call>\n')
    for tool, (path_key, old, new) in zip(EDIT_TOOLS, EDIT_KEYS, strict=True):
        parts.append(
            f"<tool_call>\n<function={tool}>\n<parameter={path_key}>\n{path}\n</parameter>\n"
            f"<parameter={old}>\n\n</parameter>\n<parameter={new}>\n\n</parameter>\n</function>\n</tool_call>\n"
        )
    return "".join(parts)


class FormatTokens:
    """The formats in one tokenizer's tokens.

    Args:
        codec: the tokenizer.

    Attributes:
        echoes: pairs of markers, `int32[M]` each; what followed the first is likely to follow the second again.
        argument_tokens: last tokens of the markers that open a JSON string of code.
    """

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self.echoes: list[tuple[NDArray[np.int32], NDArray[np.int32]]] = []
        self.argument_tokens: set[int] = set()
        known = set()
        for open_marker, echo_marker in _echo_markers():
            pair = open_marker.tokens(codec), echo_marker.tokens(codec)
            if pair[0] is None or pair[1] is None or (key := (pair[0].tobytes(), pair[1].tobytes())) in known:
                continue
            known.add(key)
            self.echoes.append((pair[0], pair[1]))
            if open_marker.text.endswith('":'):
                self.argument_tokens.add(int(pair[0][-1]))

    def words(self, path: str) -> NDArray[np.int32]:
        """`int32[M]`: the fixed words of the formats around an edit of `path`."""
        return np.array(self._codec.encode(format_words(path)), np.int32)

    def fence(self, path: str) -> NDArray[np.int32] | None:
        """`int32[M]`: the path above an opening fence, after which the file itself may come."""
        return Marker("a\n", f"{path}\n```\n", "a").tokens(self._codec)
