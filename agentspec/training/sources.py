"""Source text that may be trained on: files of installed Python packages under permissive licences."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

PERMISSIVE = re.compile(r"\b(MIT|BSD|Apache|ISC|Unlicense|PSF|Python Software Foundation|HPND|Zlib)\b", re.IGNORECASE)
RESTRICTIVE = re.compile(r"\b(A?L?GPL|GNU|MPL|EUPL|CDDL|Proprietary|Commercial|NVIDIA)\b", re.IGNORECASE)

PYTHON = frozenset({".py"})
TEXT = frozenset({".py", ".pyi", ".js", ".ts", ".h", ".hpp", ".c", ".md", ".rst"})
"""Source and documentation."""
LEFT_OUT = frozenset({"tests", "_vendor", "third_party", ".."})
"""Folders whose files are left out."""

FUNCTION_LINES = range(4, 31)
"""Lengths of the functions that prompts quote: long enough to say something, short enough for a small context."""


@dataclass(frozen=True, slots=True)
class Function:
    """A Python function cut out of a file.

    Attributes:
        name: its name.
        signature: `name(arguments)` as written.
        purpose: first line of its docstring; empty without one.
        source: its text, dedented.
    """

    name: str
    signature: str
    purpose: str
    source: str


def licence_of(distribution: Distribution) -> str:
    """The licence a distribution declares, in one line; empty when it declares none."""
    fields = distribution.metadata.get_all
    classifiers = [text for text in fields("Classifier") or [] if text.startswith("License ::")]
    declared = [*(fields("License-Expression") or []), *classifiers, *(fields("License") or [])]
    # Some packages put the whole licence text there.
    return "; ".join(text.splitlines()[0] for text in declared if text.strip())


def is_permissive(licence: str) -> bool:
    """Whether a declared licence is permissive and nothing else."""
    return bool(PERMISSIVE.search(licence)) and not RESTRICTIVE.search(licence)


def permissive_packages(paths: list[str] | None = None) -> dict[str, str]:
    """Names and licences of the installed distributions that may be trained on, sorted by name.

    Args:
        paths: folders with installed packages; None: those of this Python.
    """
    found = distributions() if paths is None else distributions(path=paths)
    licences = {distribution.metadata["Name"]: licence_of(distribution) for distribution in found}
    return {name: licences[name] for name in sorted(licences, key=str.lower) if is_permissive(licences[name])}


def package_files(
    packages: Iterable[str], paths: list[str] | None = None, suffixes: frozenset[str] = PYTHON
) -> Iterator[Path]:
    """Files of installed distributions, tests and other people's code inside them left out.

    Args:
        packages: distribution names.
        paths: as in `permissive_packages`.
        suffixes: of the files wanted.
    """
    wanted = set(packages)
    found = distributions() if paths is None else distributions(path=paths)
    by_name = {distribution.metadata["Name"]: distribution for distribution in found}
    for name in sorted(wanted & by_name.keys(), key=str.lower):
        for file in by_name[name].files or []:
            if file.suffix in suffixes and not LEFT_OUT & set(file.parts):
                yield file.locate()  # type: ignore[misc]


def functions(source: str) -> Iterator[Function]:
    """The functions and methods of a Python file whose length is in `FUNCTION_LINES`; none where it does not parse."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    lines = source.splitlines()
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or node.end_lineno is None:
            continue
        if node.end_lineno - node.lineno + 1 not in FUNCTION_LINES:
            continue
        block = lines[node.lineno - 1 : node.end_lineno]
        text = "\n".join(line[node.col_offset :] for line in block)
        purpose = (ast.get_docstring(node) or "").partition("\n")[0].strip()
        yield Function(node.name, f"{node.name}({ast.unparse(node.args)})", purpose, text)
