"""Curves of shares over positions, side by side in one SVG."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from xml.etree import ElementTree

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WIDTH, HEIGHT = 400, 260
"""Of a panel, in pixels."""
LEFT, RIGHT, TOP, BOTTOM = 40, 12, 30, 34
COLOURS = ("#c2410c", "#1d4ed8", "#15803d", "#7e22ce", "#a16207", "#0f766e", "#be185d", "#475569")
LEGEND_LINE = 15


class Line(NamedTuple):
    """A curve.

    Attributes:
        name: in the legend.
        shares: by position, from 0 to 1.
    """

    name: str
    shares: Sequence[float]


def draw(panels: Mapping[str, Sequence[Line]], positions: int) -> str:
    """The picture.

    Args:
        panels: curves by title, from left to right.
        positions: on the horizontal axis, from 1.
    """
    size = {"width": str(WIDTH * len(panels)), "height": str(HEIGHT)}
    style = {"font-family": "system-ui, sans-serif", "font-size": "11", "fill": "#444"}
    svg = ElementTree.Element("svg", {**size, **style, "role": "img", "xmlns": "http://www.w3.org/2000/svg"})
    ElementTree.SubElement(svg, "rect", {**size, "fill": "white"})
    for number, (title, lines) in enumerate(panels.items()):
        panel = ElementTree.SubElement(svg, "g", {"transform": f"translate({number * WIDTH} 0)"})
        _text(panel, (LEFT, 16), title)
        _axes(panel, positions)
        for at, line in enumerate(lines):
            colour = COLOURS[at % len(COLOURS)]
            places = [_place(position, share, positions) for position, share in enumerate(line.shares)]
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            ElementTree.SubElement(
                panel, "polyline", {"points": points, "fill": "none", "stroke": colour, "stroke-width": "2"}
            )
            for x, y in places:
                ElementTree.SubElement(
                    panel, "circle", {"cx": f"{x:.1f}", "cy": f"{y:.1f}", "r": "2.5", "fill": colour}
                )
            _text(panel, (WIDTH - RIGHT, TOP + 12 + LEGEND_LINE * at), line.name, anchor="end", colour=colour)
    return ElementTree.tostring(svg, encoding="unicode") + "\n"


def _place(position: int, share: float, positions: int) -> tuple[float, float]:
    x = LEFT + (WIDTH - LEFT - RIGHT) * position / (positions - 1)
    return x, TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)


def _axes(panel: ElementTree.Element, positions: int) -> None:
    for tenths in range(0, 11, 2):
        (left, y), (right, _) = (_place(at, tenths / 10, positions) for at in (0, positions - 1))
        ends = {"x1": f"{left:.1f}", "x2": f"{right:.1f}", "y1": f"{y:.1f}", "y2": f"{y:.1f}"}
        ElementTree.SubElement(panel, "line", {**ends, "stroke": "#e5e5e5"})
        _text(panel, (LEFT - 6, y + 4), f"{tenths / 10:.1f}", anchor="end")
    for position in range(positions):
        _text(panel, (_place(position, 0, positions)[0], HEIGHT - BOTTOM + 16), str(position + 1), anchor="middle")
    _text(panel, (WIDTH / 2, HEIGHT - 4), "k", anchor="middle")


def _text(
    panel: ElementTree.Element, place: tuple[float, float], text: str, *, anchor: str = "start", colour: str = "#444"
) -> None:
    attributes = {"x": f"{place[0]:.1f}", "y": f"{place[1]:.1f}", "text-anchor": anchor, "fill": colour}
    ElementTree.SubElement(panel, "text", attributes).text = text
