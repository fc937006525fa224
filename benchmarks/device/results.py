"""What the device benchmark found, and how it is shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from agentspec.kernels.measuring.steps import Shape
from benchmarks.device.contenders import CAUSAL, OURS
from benchmarks.device.part import shape_name
from benchmarks.device.plot import line_plot
from benchmarks.device.programme import GOAL_SHAPE


@dataclass(frozen=True, slots=True)
class Goal:
    """One of the stated goals.

    Attributes:
        what: in words.
        bound: with its unit.
        measured: the figure; None where it was not measured.
        met: whether it keeps the bound; None where it was not measured.
    """

    what: str
    bound: str
    measured: float | None
    met: bool | None


@dataclass(slots=True)
class Results:
    """All that was found; written as JSON.

    Attributes:
        dry_run: the figures are those of a CPU at tiny shapes and mean nothing.
        machine: device and versions.
        checks: one entry per contender and shape.
        copy_bytes_per_second: measured bandwidth; 0 when it was not measured.
        attention: microseconds by shape, written `width x batch x context`, and contender.
        steps: microseconds of mask packing, acceptance and compaction.
        cost_curve: T(n) of the model.
        left_out: shapes for which there was no time or memory, and why.
        errors: the end of what a part wrote before it failed, by part.
        seconds: that each part took.
    """

    dry_run: bool
    machine: dict[str, str] = field(default_factory=dict)
    checks: list[dict[str, Any]] = field(default_factory=list)
    copy_bytes_per_second: float = 0.0
    attention: dict[str, dict[str, float]] = field(default_factory=dict)
    shapes: dict[str, dict[str, int]] = field(default_factory=dict)
    steps: list[dict[str, Any]] = field(default_factory=list)
    cost_curve: dict[str, Any] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, record: dict[str, Any]) -> None:
        """Take in one line of a part."""
        if "check" in record:
            self.checks.append(record)
        elif "time" in record:
            name = shape_name(Shape(**record["shape"]))
            self.shapes[name] = record["shape"]
            self.attention.setdefault(name, {})[record["time"]] = record["microseconds"]
        elif "steps" in record:
            self.steps.append(record["steps"])
        elif "left_out" in record:
            self.left_out.append(record["left_out"])
        for name in ("machine", "copy_bytes_per_second", "cost_curve"):
            if name in record:
                setattr(self, name, record[name])

    @property
    def wrong(self) -> list[dict[str, Any]]:
        """Checks that were not passed."""
        return [check for check in self.checks if not check["passed"]]

    def fastest(self) -> dict[str, str]:
        """The fastest contender by shape, among those that compute trees."""
        exact = {
            shape: {name: time for name, time in times.items() if name != CAUSAL}
            for shape, times in self.attention.items()
        }
        return {shape: min(times, key=lambda name: times[name]) for shape, times in exact.items() if times}

    def bandwidth_share(self, shape: str, microseconds: float) -> float:
        """Bytes of keys and values over what a copy would have moved in that time; 16-bit elements."""
        bytes_read = 2 * Shape(**self.shapes[shape]).cache_elements
        return bytes_read / (microseconds * 1e-6) / self.copy_bytes_per_second if self.copy_bytes_per_second else 0.0

    def goals(self) -> list[Goal]:
        """The stated goals, and whether they are met."""
        times = self.attention.get(shape_name(GOAL_SHAPE), {})
        ours = min((time for name, time in times.items() if name in OURS), default=None)
        steps = next((one for one in self.steps if one["batch"] == 1), {})
        beside = steps["accept_greedy"] + steps["compact"] if steps else None
        causal, stock = (_ratio(ours, times.get(CAUSAL)), _ratio(times.get("stock"), ours))
        return [
            _goal("time over causal attention of the same shape", "at most 1.10", causal, 1.10, most=True),
            _goal("stock custom mask over ours", "at least 1.8", stock, 1.8, most=False),
            _goal("mask set-up", "under 20 µs", steps.get("pack_mask"), 20.0, most=True),
            _goal("acceptance and compaction", "under 30 µs", beside, 30.0, most=True),
        ]

    def table(self) -> str:
        """Timings and goals as Markdown."""
        names = list(dict.fromkeys(name for times in self.attention.values() for name in times))
        lines = ["| width x batch x context | " + " | ".join(names) + " |", "|---|" + "--:|" * len(names)]
        for shape, times in self.attention.items():
            cells = [
                f"{times[name]:.0f} µs ({self.bandwidth_share(shape, times[name]):.0%})" if name in times else ""
                for name in names
            ]
            lines.append(f"| {shape} | " + " | ".join(cells) + " |")
        lines += ["", "| goal | bound | measured | |", "|---|---|--:|---|"]
        for goal in self.goals():
            verdict = {None: "not measured", True: "met", False: "missed"}[goal.met]
            figure = "" if goal.measured is None else f"{goal.measured:.2f}"
            lines.append(f"| {goal.what} | {goal.bound} | {figure} | {verdict} |")
        return "\n".join(lines)

    def plot(self) -> str:
        """Time over context at the first width and batch that were timed, as SVG."""
        series: dict[str, list[tuple[float, float]]] = {}
        first = next(iter(self.shapes.values()), {})
        for name, shape in self.shapes.items():
            if (shape["width"], shape["batch"]) == (first["width"], first["batch"]):
                for contender, microseconds in self.attention[name].items():
                    series.setdefault(contender, []).append((shape["context"], microseconds))
        title = f"Attention of one layer, {first.get('width')} rows, batch {first.get('batch')}"
        return line_plot(title, "tokens of context", series)


def _ratio(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one / other


def _goal(what: str, bound: str, measured: float | None, limit: float, *, most: bool) -> Goal:
    met = None if measured is None else (measured <= limit if most else measured >= limit)
    return Goal(what, bound, measured, met)
