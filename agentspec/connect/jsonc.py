"""Changes to JSON files that people edit: comments, trailing commas and layout of all else stay as they are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from agentspec.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tree_sitter import Node, Parser

Edit = tuple[int, int, str]
"""Bytes from start to end, and the text that takes their place."""

INDENT = 2


@cache
def _parser() -> Parser:
    import tree_sitter_json  # noqa: PLC0415 (loaded by the one verb that merges)
    from tree_sitter import Language, Parser  # noqa: PLC0415

    return Parser(Language(tree_sitter_json.language()))


def merge_json(text: str, values: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> str:
    """`text` with `values` in it: objects are merged, list items with a known `name` replaced, others put in front.

    Raises:
        InvalidRequestError: `text` is neither JSON nor JSON with comments, or holds another kind of value.
    """
    if not text.strip():
        return json.dumps(values, indent=INDENT) + "\n"
    source = text.encode()
    root = _parser().parse(source).root_node
    problem = next(_problems(root), None)
    if problem is not None:
        raise InvalidRequestError(f"line {problem.start_point.row + 1} is not valid JSON")
    document = _value(root)
    expected = "object" if isinstance(values, Mapping) else "array"
    if document is None or document.type != expected:
        raise InvalidRequestError(f"it holds no {expected}")
    for start, end, replacement in sorted(_edits(source, document, values), reverse=True):
        source = source[:start] + replacement.encode() + source[end:]
    return source.decode()


def _problems(node: Node) -> Iterator[Node]:
    """Nodes that are no JSON; a comma before a closing bracket is not counted as one."""
    for child in node.children:
        if child.is_missing or (child.is_error and not _is_trailing_comma(child)):
            yield child
        elif not child.is_error:
            yield from _problems(child)


def _is_trailing_comma(error: Node) -> bool:
    following = error.next_sibling
    return error.text == b"," and following is not None and following.type in {"}", "]", "comment"}


def _value(node: Node) -> Node | None:
    """The first child that is a value."""
    return next((child for child in node.named_children if child.type not in {"comment", "ERROR"}), None)


def _edits(source: bytes, node: Node, value: Any) -> Iterator[Edit]:
    """What must change at `node` so that it holds `value`."""
    if node.type == "object" and isinstance(value, Mapping):
        yield from _object_edits(source, node, value)
    elif node.type == "array" and isinstance(value, Sequence) and not isinstance(value, str):
        yield from _array_edits(source, node, value)
    else:
        yield node.start_byte, node.end_byte, _dumps(value, _indent(source, node))


def _object_edits(source: bytes, node: Node, value: Mapping[str, Any]) -> Iterator[Edit]:
    members = {_key(pair): pair.child_by_field_name("value") for pair in node.named_children if pair.type == "pair"}
    added = []
    for key, item in value.items():
        member = members.get(key)
        if member is not None:
            yield from _edits(source, member, item)
        else:
            added.append((f"{json.dumps(key)}: ", item))
    yield from _insert(source, node, added, bool(members))


def _array_edits(source: bytes, node: Node, value: Sequence[Any]) -> Iterator[Edit]:
    items = [child for child in node.named_children if child.type not in {"comment", "ERROR"}]
    named = {name: item for item in items if (name := _name(item)) is not None}
    added = []
    for item in value:
        name = item.get("name") if isinstance(item, Mapping) else None
        if name is not None and name in named:
            old = named[name]
            yield old.start_byte, old.end_byte, _dumps(item, _indent(source, old))
        elif json.dumps(item).encode() not in {child.text for child in items}:
            added.append(("", item))
    yield from _insert(source, node, added, bool(items))


def _insert(source: bytes, node: Node, added: Sequence[tuple[str, Any]], others_follow: bool) -> Iterator[Edit]:
    """New members right behind the opening bracket, where no comma of the others can be in the way."""
    if not added:
        return
    outer = _indent(source, node)
    inner = outer + " " * INDENT
    lines = ",".join(f"\n{inner}{prefix}{_dumps(item, inner)}" for prefix, item in added)
    end = "," if others_follow else "" if source[node.start_byte + 1 : node.end_byte - 1].strip() else f"\n{outer}"
    yield node.start_byte + 1, node.start_byte + 1, lines + end


def _key(pair: Node) -> str:
    key = pair.child_by_field_name("key")
    return str(json.loads(key.text)) if key is not None and key.text is not None else ""


def _name(item: Node) -> Any:
    """The `name` of an object that is a list item."""
    pairs = item.named_children if item.type == "object" else []
    for pair in (child for child in pairs if child.type == "pair"):
        value = pair.child_by_field_name("value")
        if _key(pair) == "name" and value is not None and value.type == "string" and value.text is not None:
            return json.loads(value.text)
    return None


def _indent(source: bytes, node: Node) -> str:
    """The white space that begins the line of `node`."""
    begin = source.rfind(b"\n", 0, node.start_byte) + 1
    line = source[begin : node.start_byte].decode()
    return line[: len(line) - len(line.lstrip())]


def _dumps(value: Any, indent: str) -> str:
    return json.dumps(value, indent=INDENT).replace("\n", f"\n{indent}")
