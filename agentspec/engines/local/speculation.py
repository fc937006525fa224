"""When and how much to draft: verify costs as they are on this machine now, and a stop when drafting does not pay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class CostModel(Protocol):
    """How long one forward pass takes, measured at start."""

    def seconds(self, rows: int, context: int) -> float:
        """Seconds of a pass over `rows` tokens, each of which sees `context` committed ones."""


class StepClock:
    """Corrects the cost curve by the plain steps that are observed while serving.

    The curve's shape is measured once; load on the machine scales it. The scale is learnt from passes without drafts
    only, so that it says what *not* drafting would cost.

    Args:
        cost: the curve measured at start.
    """

    _FORGETTING = 0.1
    _CONTEXT_STEP = 512
    """Tokens of context over which one cost curve is used."""

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost
        self._scale = 1.0
        self._plain_steps = 0
        self._curves: dict[tuple[int, int, int], NDArray[np.float32]] = {}

    def plain_seconds(self, batch: int, context: int) -> float:
        """Expected seconds of a plain step of `batch` sequences."""
        return self._scale * self._cost.seconds(batch, context)

    def observe_plain(self, batch: int, context: int, seconds: float) -> None:
        """Learn from a plain step of `batch` sequences."""
        ratio = seconds / self._cost.seconds(batch, context)
        self._plain_steps += 1
        # At first a mean of all steps, so that the first ones already count: the load may have changed since start.
        self._scale += max(self._FORGETTING, 1 / self._plain_steps) * (ratio - self._scale)

    def verify_curve(self, batch: int, context: int, max_nodes: int) -> NDArray[np.float32]:
        """Cost of a draft of one sequence when the others of the batch draft as much.

        Returns:
            `float32[max_nodes + 1]`, entry n in seconds for n drafted nodes.
        """
        key = (batch, context // self._CONTEXT_STEP, max_nodes)
        if key not in self._curves:
            middle = (key[1] + 0.5) * self._CONTEXT_STEP
            costs = [self._cost.seconds(batch * (nodes + 1), int(middle)) for nodes in range(max_nodes + 1)]
            self._curves[key] = np.array(costs, np.float32)
        return self._curves[key] * np.float32(self._scale)

    def tokens_within(self, seconds: float, multiple: int, most: int) -> int:
        """Tokens of the longest pass that takes `seconds`: a multiple of `multiple`, one at least, up to `most`."""
        sizes = range(multiple, most + 1, multiple)
        return max((size for size in sizes if self._cost.seconds(size, 0) <= seconds), default=multiple)

    def share(self, batch: int, nodes: int, all_nodes: int, context: int) -> float:
        """Part of a step's time that would be left had only one sequence of the batch drafted.

        Args:
            batch: sequences.
            nodes: drafted by that one.
            all_nodes: drafted by all.
            context: committed tokens of a sequence.
        """
        return self._cost.seconds(batch + nodes, context) / self._cost.seconds(batch + all_nodes, context)


class Governor:
    """Suspends drafting for a sequence while it costs more than it brings.

    Every step with a draft is compared with plain steps that would have emitted as many tokens. When the running
    balance is negative, drafting pauses; the pause doubles each time drafting fails again. Paused, a sequence verifies
    only what is likelier right than wrong, since a copy may begin at any token; the pause ends when that pays, and
    admits nothing more when it fails as well.
    """

    _FORGETTING = 0.2
    _TRIAL_STEPS = 4
    _FIRST_PAUSE = 8
    _LONGEST_PAUSE = 256
    _SURE = 0.5
    _TOLERATED = 0.5
    """Plain steps that sure drafts may lose in one pause."""

    def __init__(self) -> None:
        self._balance = 0.0
        self._trial = 0
        self._pause = self._FIRST_PAUSE
        self._paused_steps = 0
        self._lost = 0.0

    def least_path_probability(self) -> float | None:
        """How likely the paths of the next draft must be; None: do not draft. Counts down, so ask once per step."""
        if self._paused_steps == 0:
            self._lost = 0.0
            return 0.0
        self._paused_steps -= 1
        return self._SURE if self._lost < self._TOLERATED else None

    def observe(self, tokens: int, seconds: float, plain_seconds: float) -> None:
        """Learn from a step with a draft.

        Args:
            tokens: emitted by it.
            seconds: that it took, drafting included.
            plain_seconds: that one plain step would have taken.
        """
        gain = tokens - seconds / plain_seconds
        if self._paused_steps:
            self._observe_paused(gain)
            return
        self._balance += self._FORGETTING * (gain - self._balance)
        self._trial += 1
        if self._trial < self._TRIAL_STEPS:
            return
        if self._balance < 0:
            self._paused_steps = self._pause
            self._lengthen()
            self._balance = 0.0
            self._trial = 0
        else:
            self._pause = self._FIRST_PAUSE

    def _observe_paused(self, gain: float) -> None:
        if gain > 0:
            self._paused_steps = 0
            return
        self._lost -= gain
        if self._lost >= self._TOLERATED:
            self._lengthen()

    def _lengthen(self) -> None:
        self._pause = min(2 * self._pause, self._LONGEST_PAUSE)
