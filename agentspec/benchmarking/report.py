"""A self-contained HTML page of a comparison: plots, the best of each drafter, and every figure."""

from __future__ import annotations

from html import escape
from itertools import groupby
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from agentspec.benchmarking.comparison import HEADINGS, NODE_LIMITS, frontier, overview, overview_heading
from agentspec.benchmarking.tradeoff_plot import Setting, draw

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agentspec.benchmarking.comparison import ComparisonRow

_STYLE = """
:root { color-scheme: light dark; --ink: #1f2937; --faint: #5b6472; --ground: #ffffff; --rule: #e3e6ea;
  --best: #1d4ed8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ee; --faint: #a4adba; --ground: #16191f; --rule: #343a44; --best: #8ab4ff; }
}
body { font: 15px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem;
  color: var(--ink); background: var(--ground); }
p, li { max-width: 46rem; }
.facts, caption { color: var(--faint); }
caption { text-align: left; padding-bottom: .3rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0 1.5rem; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .8rem; text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th:first-child, td:first-child, .full :is(th, td):nth-child(2) { text-align: left; padding-left: 0; }
.best { font-weight: 600; color: var(--best); }
svg { max-width: 100%; height: auto; }
"""
_READING = (
    "<p>Each edit below was recorded. A drafter proposes what comes next; the model would check the proposal in one"
    " pass (a step) and keep the part that it would have said itself, plus one token of its own. No model ran: what is"
    " kept follows from the recorded text.</p><ul>"
    "<li><b>Tokens per step</b>: plain decoding has 1.00; higher is better.</li>"
    "<li><b>Drafted nodes per step</b>: what each pass had to check. Checking costs time, on a small machine more than"
    " on a large one, so compare drafters at equal nodes: up and to the left is better.</li>"
    "<li><b>Setting</b>: for agentspec, the drafted nodes at which it is told that a pass takes twice as long as plain"
    " decoding (in service it measures that), or the most that it may draft. For the others, the most that they may"
    " draft.</li>"
    "<li><b>p50, p99</b>: time that a drafter takes in each step; <b>begin</b>: once per request, the reading of the"
    " prompt.</li></ul>"
)


def render_report(title: str, facts: Iterable[str], rows: Sequence[ComparisonRow]) -> str:
    """The page.

    Args:
        title: heading.
        facts: what was measured, where and when; one paragraph.
        rows: grouped by format.
    """
    by_format = {name: list(members) for name, members in groupby(rows, key=lambda row: row.format)}
    sections = "".join(
        f"<h2>{escape(_heading(name, members))}</h2>{_table(members)}" for name, members in by_format.items()
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>"
        f'<p class="facts">{escape(" · ".join(facts))}</p>{_READING}{_plot(by_format)}'
        f"{''.join(_overview(rows, nodes) for nodes in NODE_LIMITS)}{sections}</body></html>\n"
    )


def _heading(name: str, rows: Sequence[ComparisonRow]) -> str:
    summary = rows[0].summary
    return f"{name}: {summary.traces} edits, {summary.tokens:,} tokens"


def _plot(by_format: dict[str, list[ComparisonRow]]) -> str:
    panels: dict[str, dict[str, list[Setting]]] = {}
    for name, rows in by_format.items():
        for drafter in dict.fromkeys(row.drafter for row in rows):
            best = frontier([row for row in rows if row.drafter == drafter and row.summary.drafted_per_step])
            settings = [Setting(row.summary.drafted_per_step, row.summary.tokens_per_step, row.setting) for row in best]
            if settings:
                panels.setdefault(name, {})[drafter] = settings
    return ElementTree.tostring(draw(panels), encoding="unicode") if panels else ""


def _overview(rows: Sequence[ComparisonRow], nodes: int) -> str:
    best = overview(rows, nodes)
    formats = list(dict.fromkeys(row.format for row in rows))
    most = {name: max(of_drafter[name].summary.tokens_per_step for of_drafter in best.values()) for name in formats}
    lines = ["<tr><th>drafter</th>" + "".join(f"<th>{escape(name)}</th>" for name in formats) + "</tr>"]
    for drafter, of_drafter in best.items():
        cells = (
            f"<td{' class=best' if row.summary.tokens_per_step == most[row.format] else ''}>{row.in_brief()}</td>"
            for row in (of_drafter[name] for name in formats)
        )
        lines.append(f"<tr><td>{escape(drafter)}</td>{''.join(cells)}</tr>")
    caption = f"<caption>{escape(overview_heading(nodes))}</caption>"
    return f'<div class="wide"><table>{caption}{"".join(lines)}</table></div>'


def _table(rows: Sequence[ComparisonRow]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in ("drafter", "setting", *HEADINGS))
    cells = ((row.drafter, row.setting, *row.figures()) for row in rows)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in cells)
    return f'<div class="wide"><table class="full"><tr>{head}</tr>{body}</table></div>'
