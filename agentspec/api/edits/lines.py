"""Lines of text with their ends, and the two ways in which files end them."""

from __future__ import annotations

CRLF = "\r\n"


def split_lines(text: str) -> list[str]:
    """Lines with their ends, split at line feeds alone, as git does: form feeds and carriage returns stay inside."""
    lines = text.split("\n")
    last = lines.pop()
    return [f"{line}\n" for line in lines] + ([last] if last else [])


def uses_crlf(text: str) -> bool:
    """Whether every line ends with a carriage return and a line feed."""
    return CRLF in text and text.count(CRLF) == text.count("\n")


def with_line_feeds(text: str) -> str:
    """The text with line feeds alone."""
    return text.replace(CRLF, "\n")


def with_crlf(text: str) -> str:
    """A text of line feeds alone with a carriage return before each."""
    return text.replace("\n", CRLF)
