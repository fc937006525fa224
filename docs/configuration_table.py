"""Writes the table of settings into docs/configuration.md; `--check` only says whether it is current.

Run: `python docs/configuration_table.py`.
"""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from agentspec.config import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo

PAGE = Path(__file__).with_name("configuration.md")
BEGIN, END = "<!-- settings: begin -->\n", "<!-- settings: end -->\n"


def rendered_page(page: str) -> str:
    """The page with its table as the settings are now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + settings_table() + END + after


def settings_table() -> str:
    """One Markdown table for each section."""
    for variable in ("XDG_CACHE_HOME", "XDG_DATA_HOME"):
        os.environ.pop(variable, None)
    top: list[tuple[str, FieldInfo]] = []
    tables = ""
    for name, field in Settings.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            rows = [(f"{name}.{key}", inner) for key, inner in section.model_fields.items()]
            tables += f"\n### `{name}`\n\n{section.__doc__}\n\n" + "".join(_table(rows))
        else:
            top.append((name, field))
    return tables + "\n### Top level\n\n" + "".join(_table(top)) + "\n"


def _table(rows: list[tuple[str, FieldInfo]]) -> Iterator[str]:
    yield "| setting | type | default | |\n|---|---|---|---|\n"
    for name, field in rows:
        default = _default(field.get_default(call_default_factory=True))
        yield f"| `{name}` | {_type(field.annotation)} | {default} | {field.description or ''} |\n"


def _type(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in {Union, types.UnionType}:
        return " or ".join(_type(part) for part in arguments if part is not type(None))
    if origin is tuple:
        return f"list of {_type(arguments[0])}s"
    if origin is dict:
        return "mapping"
    names = {str: "text", int: "integer", float: "number", bool: "boolean", Path: "path"}
    return names[annotation]


def _default(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, Path):
        return f"`{str(value).replace(str(Path.home()), '~', 1)}`"
    if isinstance(value, tuple | dict):
        return f"`{list(value)}`" if value else "empty"
    return f"`{value}`"


def main() -> None:
    """Update the page, or check it."""
    page = PAGE.read_text(encoding="utf-8")
    current = rendered_page(page)
    if "--check" in sys.argv[1:]:
        if page != current:
            sys.exit(f"{PAGE.name} is out of date; run python docs/{Path(__file__).name}")
        return
    PAGE.write_text(current, encoding="utf-8")


if __name__ == "__main__":
    main()
