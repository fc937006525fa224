"""What the device benchmark measures."""

from __future__ import annotations

from dataclasses import dataclass

from agentspec.kernels.measuring.steps import Shape


@dataclass(frozen=True, slots=True)
class Programme:
    """Shapes and sizes.

    Attributes:
        checked: shapes of the correctness checks.
        timed: shapes that are timed, most important first.
        steps: arguments of `time_steps`.
        copy_bytes: size of the copy that gives the bandwidth.
        repetitions: timed runs of each.
        curve_seconds: for the cost curve.
    """

    checked: tuple[Shape, ...]
    timed: tuple[Shape, ...]
    steps: tuple[dict[str, int], ...]
    copy_bytes: int
    repetitions: int
    curve_seconds: float


GOAL_SHAPE = Shape(32, 1, 32_768)
"""What the goals are stated for."""


def full_programme() -> Programme:
    """For a GPU."""
    widths, batches = (32, 16, 64, 8, 1), (1, 4, 8)
    contexts = (32_768, 8_192, 131_072, 2_048)
    shapes = [Shape(q, b, c) for c in contexts for b in batches for q in widths if b * c <= 524_288]
    return Programme(
        checked=tuple(
            Shape(q, b, c, heads, 8, dim)
            for q, b, c, heads, dim in (
                (1, 1, 17, 32, 128),
                (8, 3, 300, 32, 128),
                (32, 2, 2_000, 32, 128),
                (64, 1, 33, 32, 128),
                (100, 2, 900, 8, 128),
                (16, 2, 0, 32, 128),
            )
        ),
        timed=tuple(shapes),
        steps=tuple(
            {"batch": b, "width": 32, "vocabulary": 128_256, "layers": 32, "row_elements": 1024} for b in (1, 4)
        ),
        copy_bytes=2 << 30,
        repetitions=15,
        curve_seconds=20.0,
    )


def tiny_programme() -> Programme:
    """For the dry run: every path, nothing worth measuring."""
    small = {"heads": 4, "kv_heads": 2, "head_dim": 16}
    return Programme(
        checked=(Shape(1, 1, 5, **small), Shape(6, 2, 30, **small), Shape(70, 1, 0, **small)),
        timed=(Shape(4, 1, 16, **small), Shape(4, 1, 64, **small)),
        steps=({"batch": 2, "width": 4, "vocabulary": 40, "layers": 2, "row_elements": 32},),
        copy_bytes=1 << 16,
        repetitions=2,
        curve_seconds=0.5,
    )
