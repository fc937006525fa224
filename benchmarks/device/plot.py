"""A plot of the measurements as SVG, without a plotting library."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WIDTH, HEIGHT, MARGIN = 760, 420, 60
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")


def line_plot(title: str, label: str, series: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Lines over logarithmic axes.

    Args:
        title: over the plot.
        label: of the x axis; the y axis is microseconds.
        series: by name, points (x, y), all positive.
    """
    points = [point for line in series.values() for point in line]
    if not points:
        return f'<svg xmlns="http://www.w3.org/2000/svg"><text y="20">{escape(title)}: nothing measured</text></svg>'
    (left, right), (low, high) = ((min(axis), max(axis)) for axis in zip(*points, strict=True))

    def place(x: float, y: float) -> str:
        across = math.log(x / left) / math.log(right / left) if right > left else 0.5
        up = math.log(y / low) / math.log(high / low) if high > low else 0.5
        return f"{MARGIN + across * (WIDTH - 3 * MARGIN):.1f},{HEIGHT - MARGIN - up * (HEIGHT - 2 * MARGIN):.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{MARGIN}" y="24" font-size="15">{escape(title)}</text>',
        f'<text x="{MARGIN}" y="{HEIGHT - 14}" font-size="12">{escape(label)}: {left:g} to {right:g}</text>',
        f'<text x="{MARGIN}" y="44" font-size="12">microseconds: {low:.0f} to {high:.0f}</text>',
    ]
    for index, (name, line) in enumerate(series.items()):
        colour = COLOURS[index % len(COLOURS)]
        path = " ".join(place(x, y) for x, y in sorted(line))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(
            f'<text x="{WIDTH - 2 * MARGIN + 8}" y="{60 + 18 * index}" font-size="12" fill="{colour}">'
            f"{escape(name)}</text>"
        )
    return "\n".join([*parts, "</svg>"])
