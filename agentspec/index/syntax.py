"""Marks in a file's tokens: definitions and identifiers, found by tree-sitter. Marks never cut the token stream."""

from __future__ import annotations

import importlib
import importlib.util
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from tree_sitter import Language, Parser, Query, QueryCursor

from agentspec.index.grammars import GRAMMARS, Grammar, grammar_in
from agentspec.index.segment import DefinitionKind, DefinitionMark

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from tree_sitter import Node, Point

    from agentspec.index.tokenizer import TokenizedText

_MARKS_FORMAT = "2"

_MAX_PARSE_SECONDS = 2.0
"""A file that takes longer to parse is indexed without marks."""

_PARSE_CHUNK_BYTES = 1 << 16

_WRAPPERS = frozenset(
    {"decorated_definition", "export_statement", "ambient_declaration", "template_declaration", "type_declaration"}
)
"""Nodes that begin before a definition and belong to it: decorators, `export`, `template <...>`, `type`."""

_CONTAINERS = frozenset({DefinitionKind.CLASS, DefinitionKind.STRUCT, DefinitionKind.INTERFACE, DefinitionKind.ENUM})
"""A function defined directly inside one of these is a method."""


_VAGUE = frozenset({DefinitionKind.FUNCTION, DefinitionKind.TYPE})
"""Of two kinds found for one place, these give way."""


class Marks(NamedTuple):
    """What syntax says of a file's tokens.

    Attributes:
        identifiers: `bool[L]`, tokens that lie in identifiers.
        definitions: in the order in which they begin.
    """

    identifiers: NDArray[np.bool_]
    definitions: tuple[DefinitionMark, ...]


class SyntaxMarker:
    """Marks files, and says once for each language why it cannot.

    Args:
        warn: told one sentence for each language whose grammar is missing or fails.
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._warned: set[str] = set()
        self._parsings: dict[str, _Parsing] = {}

    def mark(self, path: str, text: str, tokenized: TokenizedText) -> Marks:
        """Marks of one file; none where its language has no grammar or it cannot be parsed.

        Args:
            path: tells the language.
            text: the file's text.
            tokenized: its tokens.
        """
        nothing = Marks(np.zeros(len(tokenized.tokens), np.bool_), ())
        grammar = grammar_in(path, text)
        if grammar is None:
            return nothing
        try:
            parsing = self._load(grammar)
        except ImportError:
            self._warn_once(
                grammar, f"no grammar for {grammar.language}: install {grammar.package}; its files are indexed unmarked"
            )
            return nothing
        try:
            return parsing.mark(text, tokenized)
        except (ValueError, RuntimeError, TimeoutError) as error:
            self._warn_once(grammar, f"{path} cannot be parsed as {grammar.language} ({error}); indexed unmarked")
            return nothing

    def _load(self, grammar: Grammar) -> _Parsing:
        if grammar.language not in self._parsings:
            self._parsings[grammar.language] = _Parsing(grammar)
        return self._parsings[grammar.language]

    def _warn_once(self, grammar: Grammar, message: str) -> None:
        if grammar.language not in self._warned:
            self._warned.add(grammar.language)
            self._warn(message)


def marks_version() -> str:
    """Names everything that decides marks; documents with other marks are not reused."""
    installed = [grammar.language for grammar in GRAMMARS if importlib.util.find_spec(grammar.module) is not None]
    return f"{_MARKS_FORMAT} " + " ".join(installed)


class _Definition(NamedTuple):
    start: int
    end: int
    kind: DefinitionKind
    name: str


class _Parsing:
    """A loaded grammar with its compiled patterns."""

    def __init__(self, grammar: Grammar) -> None:
        language = Language(getattr(importlib.import_module(grammar.module), grammar.function)())
        self._parser = Parser(language)
        leaves = [leaf if "@leaf" in leaf else f"{leaf} @leaf" for leaf in grammar.identifiers]
        self._identifiers = Query(language, "\n".join(leaves))
        simple = [f"({node} name: (_) @name) @{kind.name.lower()}" for node, kind in grammar.definitions.items()]
        self._definitions = Query(language, "\n".join([*simple, *grammar.patterns]))

    def mark(self, text: str, tokenized: TokenizedText) -> Marks:
        source = text.encode()
        root = self._parse(source)
        starts, ends = _byte_offsets(text, source, tokenized)
        leaves = QueryCursor(self._identifiers).captures(root).get("leaf", [])
        spans = np.array([(leaf.start_byte, leaf.end_byte) for leaf in leaves], np.int64).reshape(-1, 2)
        first, last = _token_spans(starts, ends, spans)
        depth = np.zeros(len(starts) + 1, np.int64)
        np.add.at(depth, first, 1)
        np.add.at(depth, last, -1)
        return Marks(np.cumsum(depth[:-1]) > 0, self._find_definitions(root, source, starts, ends))

    def _parse(self, source: bytes) -> Node:
        deadline = time.monotonic() + _MAX_PARSE_SECONDS

        def read(offset: int, _: Point) -> bytes:
            return source[offset : offset + _PARSE_CHUNK_BYTES]

        def is_late(_offset: int, _has_error: bool) -> bool:
            return time.monotonic() > deadline

        tree = self._parser.parse(read, progress_callback=is_late)
        if tree is None or time.monotonic() > deadline:
            self._parser.reset()
            raise TimeoutError(f"took more than {_MAX_PARSE_SECONDS} s")
        return tree.root_node

    def _find_definitions(
        self, root: Node, source: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> tuple[DefinitionMark, ...]:
        matches = QueryCursor(self._definitions).matches(root)
        found = _classify([_read_match(captures, source) for _, captures in matches])
        spans = np.array([(definition.start, definition.end) for definition in found], np.int64).reshape(-1, 2)
        first, last = _token_spans(starts, ends, spans)
        return tuple(
            DefinitionMark(definition.name, definition.kind, begin, end)
            for definition, begin, end in zip(found, first.tolist(), last.tolist(), strict=True)
            if begin < end
        )


def _read_match(captures: dict[str, list[Node]], source: bytes) -> _Definition:
    kind = next(name for name in captures if name != "name")
    node, name = captures[kind][0], captures["name"][0]
    while (wrapper := _wrapper_of(node)) is not None:
        node = wrapper
    inner = name.child_by_field_name("name")
    while inner is not None:  # of a qualified name, its last part
        name, inner = inner, inner.child_by_field_name("name")
    text = source[name.start_byte : name.end_byte].decode(errors="replace")
    return _Definition(node.start_byte, node.end_byte, DefinitionKind[kind.upper()], text)


def _wrapper_of(node: Node) -> Node | None:
    """The wrapper around a definition, unless it holds several of them."""
    parent = node.parent
    if parent is None or parent.type not in _WRAPPERS:
        return None
    return parent if sum(child.type == node.type for child in parent.named_children) == 1 else None


def _classify(definitions: list[_Definition]) -> list[_Definition]:
    """Sort by place, keep one of each place, and call functions directly inside a class methods."""
    chosen: list[_Definition] = []
    open_definitions: list[_Definition] = []
    ordered = sorted(definitions, key=lambda found: (found.start, -found.end, found.kind in _VAGUE))
    for definition in ordered:
        while open_definitions and open_definitions[-1].end <= definition.start:
            open_definitions.pop()
        around = open_definitions[-1] if open_definitions else None
        if around is not None and (around.start, around.end) == (definition.start, definition.end):
            continue
        if definition.kind is DefinitionKind.FUNCTION and around is not None and around.kind in _CONTAINERS:
            definition = definition._replace(kind=DefinitionKind.METHOD)  # noqa: PLW2901
        chosen.append(definition)
        open_definitions.append(definition)
    return chosen


def _byte_offsets(text: str, source: bytes, tokenized: TokenizedText) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First byte of each token and the byte behind it, from character indices."""
    if len(source) == len(text):
        return tokenized.starts, tokenized.ends
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    widths = 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)
    offsets = np.concatenate(([0], np.cumsum(widths)))
    return offsets[tokenized.starts], offsets[tokenized.ends]


def _token_spans(
    starts: NDArray[np.int64], ends: NDArray[np.int64], spans: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First token of each byte span and the token behind its last one."""
    return np.searchsorted(ends, spans[:, 0], side="right"), np.searchsorted(starts, spans[:, 1], side="left")
