"""Tokens per step against drafted nodes per step: panels in one SVG that is readable on light and dark pages."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple
from xml.etree import ElementTree

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

COLUMNS = 3
WIDTH, HEIGHT = 340, 250
"""Of a panel, in CSS pixels."""
LEFT, RIGHT, TOP, BOTTOM = 40, 14, 34, 38
"""Margins of a panel, which hold title and labels."""
LEGEND = 30
"""Height of the line that names the curves."""
CHARACTER = 6.6
"""Width of a legend's character, about."""
COLOURS = (
    ("#1d4ed8", "#8ab4ff"),
    ("#b45309", "#f5b45e"),
    ("#047857", "#5ed3a2"),
    ("#a21caf", "#e69af0"),
    ("#b91c1c", "#ff9a8f"),
    ("#475569", "#b6c2d2"),
)
"""Of the curves on light and on dark ground, in order of appearance; the marks' shapes tell them apart too."""
TICKS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Drafted nodes per step that are marked on the logarithmic axis."""

_LIGHT = {"ground": "#ffffff", "ink": "#1f2937", "faint": "#5b6472", "grid": "#e3e6ea"}
_DARK = {"ground": "#16191f", "ink": "#e6e9ee", "faint": "#a4adba", "grid": "#343a44"}


class Setting(NamedTuple):
    """A point of a curve.

    Attributes:
        drafted: nodes per step, above 0.
        tokens: per step.
        name: of the setting, shown when the pointer rests on it.
    """

    drafted: float
    tokens: float
    name: str


def draw(panels: Mapping[str, Mapping[str, Sequence[Setting]]]) -> ElementTree.Element:
    """The picture, `COLUMNS` panels side by side.

    Args:
        panels: by title; each holds curves by name. A name has the same colour and mark in every panel.
    """
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    columns = min(COLUMNS, len(panels))
    legend = _legend_lines(names, columns * WIDTH)
    width, height = columns * WIDTH, LEGEND * len(legend) + HEIGHT * math.ceil(len(panels) / columns)
    svg = ElementTree.Element(
        "svg",
        {
            "viewBox": f"0 0 {width} {height}",
            "width": str(width),
            "height": str(height),
            "class": "tradeoff",
            "role": "img",
            "xmlns": "http://www.w3.org/2000/svg",
        },
    )
    ElementTree.SubElement(svg, "title").text = "Tokens per step against drafted nodes per step"
    ElementTree.SubElement(svg, "style").text = _style()
    ElementTree.SubElement(svg, "rect", {"width": str(width), "height": str(height), "class": "ground"})
    for line, entries in enumerate(legend):
        x = float(LEFT)
        for name in entries:
            y = LEGEND * (line + 0.6)
            _mark(svg, x, y, names.index(name), name)
            _text(svg, (x + 10, y + 4), name)
            x += _legend_width(name)
    for number, (title, curves) in enumerate(panels.items()):
        row, column = divmod(number, columns)
        place = f"translate({column * WIDTH} {LEGEND * len(legend) + row * HEIGHT})"
        _panel(ElementTree.SubElement(svg, "g", {"transform": place}), title, curves, names)
    return svg


def _style() -> str:
    def rules(colours: Mapping[str, str], of_curves: Iterable[str]) -> str:
        return (
            f".tradeoff .ground{{fill:{colours['ground']}}}.tradeoff text{{fill:{colours['ink']}}}"
            f".tradeoff .faint{{fill:{colours['faint']}}}.tradeoff .grid{{stroke:{colours['grid']}}}"
            + "".join(f".tradeoff .curve{number}{{color:{colour}}}" for number, colour in enumerate(of_curves))
        )

    return (
        ".tradeoff text{font:12px system-ui,sans-serif}.tradeoff .title{font-weight:600;font-size:13px}"
        ".tradeoff .faint{font-size:11px}"
        + rules(_LIGHT, (light for light, _ in COLOURS))
        + f"@media (prefers-color-scheme:dark){{{rules(_DARK, (dark for _, dark in COLOURS))}}}"
    )


def _legend_width(name: str) -> float:
    return 34 + CHARACTER * len(name)


def _legend_lines(names: Sequence[str], width: float) -> list[list[str]]:
    lines: list[list[str]] = [[]]
    used = float(LEFT)
    for name in names:
        if lines[-1] and used + _legend_width(name) > width:
            lines.append([])
            used = LEFT
        lines[-1].append(name)
        used += _legend_width(name)
    return lines


class _Scale:
    """Maps figures to pixels: drafted nodes on a logarithmic axis, tokens on a linear one from 0."""

    def __init__(self, settings: Sequence[Setting]) -> None:
        drafted = [setting.drafted for setting in settings]
        self.left = max((tick for tick in TICKS if tick <= min(drafted)), default=TICKS[0])
        self.right = min((tick for tick in TICKS if tick >= max(drafted)), default=TICKS[-1])
        if self.left == self.right:
            self.right *= 2
        most = max(setting.tokens for setting in settings)
        unit = 10.0 ** math.floor(math.log10(most))
        self.grid = next(step for step in (unit / 5, unit / 2, unit, 2 * unit) if most / step <= 5)
        self.top = self.grid * math.ceil(most / self.grid)

    def x(self, drafted: float) -> float:
        share = math.log(max(drafted, self.left) / self.left) / math.log(self.right / self.left)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, tokens: float) -> float:
        return HEIGHT - BOTTOM - tokens / self.top * (HEIGHT - TOP - BOTTOM)


def _panel(
    panel: ElementTree.Element, title: str, curves: Mapping[str, Sequence[Setting]], names: Sequence[str]
) -> None:
    scale = _Scale([setting for settings in curves.values() for setting in settings])
    _text(panel, (LEFT, 16), title, style="title")
    for number in range(round(scale.top / scale.grid) + 1):
        y = scale.y(number * scale.grid)
        _line(panel, (LEFT, y), (WIDTH - RIGHT, y))
        _text(panel, (LEFT - 6, y + 4), f"{number * scale.grid:g}", anchor="end", style="faint")
    for tick in TICKS:
        if scale.left <= tick <= scale.right:
            _line(panel, (scale.x(tick), TOP), (scale.x(tick), HEIGHT - BOTTOM))
            _text(panel, (scale.x(tick), HEIGHT - BOTTOM + 15), str(tick), anchor="middle", style="faint")
    _text(panel, (LEFT, TOP - 5), "tokens per step", style="faint")
    _text(panel, (WIDTH - RIGHT, HEIGHT - 8), "drafted nodes per step", anchor="end", style="faint")
    # The first curve is drawn last, over the others.
    for name, settings in reversed(list(curves.items())):
        number = names.index(name)
        ordered = sorted(settings)
        points = " ".join(f"{scale.x(one.drafted):.1f},{scale.y(one.tokens):.1f}" for one in ordered)
        look = {
            "points": points,
            "fill": "none",
            "stroke": "currentColor",
            "stroke-width": "2.5" if not number else "1.6",
        }
        ElementTree.SubElement(panel, "polyline", {**look, "class": _class_of(number)})
        for one in ordered:
            told = f"{name}, {one.name}: {one.tokens:.2f} tokens at {one.drafted:.1f} nodes"
            _mark(panel, scale.x(one.drafted), scale.y(one.tokens), number, told)


def _class_of(number: int) -> str:
    return f"curve{number % len(COLOURS)}"


def _mark(parent: ElementTree.Element, x: float, y: float, number: int, told: str) -> None:
    r = 3.6
    shapes = (
        f"M{x - r:.1f} {y:.1f}a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0z",
        f"M{x - r:.1f} {y - r:.1f}h{2 * r}v{2 * r}h{-2 * r}z",
        f"M{x:.1f} {y - r - 1:.1f}l{r + 1} {2 * r + 1}h{-2 * r - 2}z",
        f"M{x:.1f} {y - r - 1:.1f}l{r + 1} {r + 1}l{-r - 1} {r + 1}l{-r - 1} {-r - 1}z",
        f"M{x:.1f} {y + r + 1:.1f}l{r + 1} {-2 * r - 1}h{-2 * r - 2}z",
    )
    mark = {"d": shapes[number % len(shapes)], "fill": "currentColor", "class": _class_of(number)}
    ElementTree.SubElement(ElementTree.SubElement(parent, "path", mark), "title").text = told


def _line(parent: ElementTree.Element, start: tuple[float, float], end: tuple[float, float]) -> None:
    ends = {"x1": start[0], "y1": start[1], "x2": end[0], "y2": end[1]}
    ElementTree.SubElement(parent, "line", {**{name: f"{at:.1f}" for name, at in ends.items()}, "class": "grid"})


def _text(
    parent: ElementTree.Element, place: tuple[float, float], text: str, *, anchor: str = "start", style: str = ""
) -> None:
    attributes = {"x": f"{place[0]:.1f}", "y": f"{place[1]:.1f}", "text-anchor": anchor}
    ElementTree.SubElement(parent, "text", {**attributes, **({"class": style} if style else {})}).text = text
