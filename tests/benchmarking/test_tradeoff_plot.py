"""Plots of tokens against drafted nodes: who stands where, and who is who."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree

from agentspec.benchmarking.tradeoff_plot import COLOURS, WIDTH, Setting, draw

if TYPE_CHECKING:
    from collections.abc import Sequence


def places(panel: ElementTree.Element, curve: str) -> list[tuple[float, float]]:
    (line,) = [line for line in panel.iter("polyline") if line.get("class") == curve]
    return [tuple(map(float, point.split(","))) for point in line.get("points", "").split()]  # type: ignore[misc]


def panels_of(svg: ElementTree.Element) -> list[ElementTree.Element]:
    return list(svg.iter("g"))


def test_more_tokens_stand_higher_and_more_nodes_further_right() -> None:
    settings = [Setting(32, 6.5, "large"), Setting(4, 3, "small"), Setting(8, 4, "middle")]
    (panel,) = panels_of(draw({"llm": {"ours": settings, "theirs": [Setting(8, 2, "only")]}}))
    left, middle, right = places(panel, "curve0")
    assert left[0] < middle[0] < right[0] <= WIDTH
    assert left[1] > middle[1] > right[1] >= 0
    assert abs((middle[0] - left[0]) * 2 - (right[0] - middle[0])) < 0.2, "doublings are equally wide"
    ((x, y),) = places(panel, "curve1")
    assert (x, y > middle[1]) == (middle[0], True)


def test_a_drafter_looks_the_same_in_every_panel() -> None:
    one, other = [Setting(4, 3, "a")], [Setting(8, 3, "b"), Setting(9, 4, "c")]
    first, second = panels_of(draw({"llm": {"ours": one, "theirs": other}, "whole": {"theirs": one}}))
    assert len(places(first, "curve1")) == len(other)
    assert places(second, "curve1")
    titles = [title.text for title in second.iter("title")]
    assert titles == ["theirs, a: 3.00 tokens at 4.0 nodes"]


def marks(svg: ElementTree.Element) -> Sequence[tuple[str | None, str]]:
    return [(mark.get("class"), mark.get("d", "").lstrip("M0123456789.- ")) for mark in svg.findall("path")]


def test_curves_with_one_colour_have_other_marks() -> None:
    names = [f"drafter {number}" for number in range(len(COLOURS) + 3)]
    svg = draw({"llm": {name: [Setting(4, 3, "")] for name in names}})
    assert len(set(marks(svg))) == len(names)
    assert svg.get("width") == str(WIDTH)
    assert max(float(mark.get("x", 0)) for mark in svg.findall("text")) < WIDTH, "the legend is broken into lines"


def test_both_kinds_of_pages_have_their_colours() -> None:
    text = ElementTree.tostring(draw({"llm": {"ours": [Setting(0.5, 1.2, "")]}}), encoding="unicode")
    light, dark = text.split("prefers-color-scheme:dark")
    for number, (on_light, on_dark) in enumerate(COLOURS):
        assert f".curve{number}{{color:{on_light}}}" in light
        assert f".curve{number}{{color:{on_dark}}}" in dark
