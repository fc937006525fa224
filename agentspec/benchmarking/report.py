"""A self-contained HTML page of a comparison: for each format a plot of tokens per step against drafted nodes."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from agentspec.benchmarking.comparison import HEADINGS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agentspec.benchmarking.comparison import ComparisonRow

WIDTH, HEIGHT, MARGIN = 460, 300, 44
"""Of one plot, in CSS pixels; the margin holds the axes' labels."""
COLOURS = ("#0b6e99", "#c4554d", "#448361", "#9065b0", "#c29343", "#787774")
"""Of the drafters, in order of appearance; told apart by people who see few colours too, with the labels."""

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0 2rem; }
th, td { padding: .2rem .9rem; text-align: right; border-bottom: 1px solid #ddd; }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
svg text { font: 11px system-ui, sans-serif; fill: #444; }
"""


def render_report(title: str, facts: Iterable[str], rows: Sequence[ComparisonRow]) -> str:
    """The page.

    Args:
        title: heading.
        facts: what was measured, where and when; one paragraph.
        rows: grouped by format.
    """
    by_format = [(name, list(members)) for name, members in groupby(rows, key=lambda row: row.format)]
    sections = "".join(f"<h2>{escape(name)}</h2>{_plot(members)}{_table(members)}" for name, members in by_format)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1><p>{escape(' · '.join(facts))}</p>"
        "<p>Tokens per step count the bonus token; greedy verification of recorded outputs, no target model runs.</p>"
        f"{sections}</body></html>\n"
    )


def _table(rows: Sequence[ComparisonRow]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in ("drafter", "setting", *HEADINGS))
    cells = ((row.drafter, row.setting, *row.figures()) for row in rows)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in cells)
    return f"<table><tr>{head}</tr>{body}</table>"


@dataclass(frozen=True, slots=True)
class _Scale:
    """Maps figures to pixels; both axes start at 0."""

    right: float
    top: float

    def x(self, drafted: float) -> float:
        return MARGIN + drafted / self.right * (WIDTH - 2 * MARGIN)

    def y(self, tokens: float) -> float:
        return HEIGHT - MARGIN - tokens / self.top * (HEIGHT - 2 * MARGIN)


def _plot(rows: Sequence[ComparisonRow]) -> str:
    scale = _Scale(
        right=1.1 * max([1.0, *(row.summary.drafted_per_step for row in rows)]),
        top=1.15 * max(row.summary.tokens_per_step for row in rows),
    )
    svg = ElementTree.Element(
        "svg", {"width": str(WIDTH), "height": str(HEIGHT), "role": "img", "xmlns": "http://www.w3.org/2000/svg"}
    )
    ElementTree.SubElement(svg, "title").text = "tokens per step against drafted nodes per step"
    _axes(svg, scale)
    by_drafter: dict[str, list[ComparisonRow]] = {}
    for row in rows:
        by_drafter.setdefault(row.drafter, []).append(row)
    for number, (name, members) in enumerate(by_drafter.items()):
        _line(svg, scale, name, members, COLOURS[number % len(COLOURS)])
    return ElementTree.tostring(svg, encoding="unicode")


def _axes(svg: ElementTree.Element, scale: _Scale) -> None:
    for fraction in (0.0, 0.25, 0.5, 0.75, 1.0):
        drafted, tokens = fraction * scale.right, fraction * scale.top
        _segment(svg, (scale.x(0), scale.y(tokens)), (scale.x(scale.right), scale.y(tokens)), "#e5e5e5")
        _label(svg, scale.x(0) - 6, scale.y(tokens) + 4, f"{tokens:.1f}", "end")
        _label(svg, scale.x(drafted), scale.y(0) + 16, f"{drafted:.0f}", "middle")
    _label(svg, WIDTH / 2, HEIGHT - 8, "drafted nodes per step", "middle")
    _label(svg, 4, 16, "tokens per step", "start")


def _line(svg: ElementTree.Element, scale: _Scale, name: str, rows: Sequence[ComparisonRow], colour: str) -> None:
    points = sorted((scale.x(row.summary.drafted_per_step), scale.y(row.summary.tokens_per_step)) for row in rows)
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    ElementTree.SubElement(svg, "polyline", {"points": path, "fill": "none", "stroke": colour, "stroke-width": "2"})
    for x, y in points:
        ElementTree.SubElement(svg, "circle", {"cx": f"{x:.1f}", "cy": f"{y:.1f}", "r": "3", "fill": colour})
    _label(svg, points[-1][0], points[-1][1] - 8, name, "end", colour=colour)


def _segment(svg: ElementTree.Element, start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
    ends = {"x1": start[0], "y1": start[1], "x2": end[0], "y2": end[1]}
    ElementTree.SubElement(svg, "line", {**{name: f"{at:.1f}" for name, at in ends.items()}, "stroke": colour})


def _label(svg: ElementTree.Element, x: float, y: float, text: str, anchor: str, *, colour: str = "#444") -> None:
    attributes = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor, "style": f"fill:{colour}"}
    ElementTree.SubElement(svg, "text", attributes).text = text
