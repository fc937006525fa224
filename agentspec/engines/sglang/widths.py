"""Which widths a verify step may have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray


class VerifyWidths:
    """Nodes per request of a verify step, the root included.

    On a GPU only captured widths run as CUDA graphs, and smaller trees are padded to the next one. Without graphs
    every width costs what it is.

    Args:
        largest: nodes per request at most.
        captured: widths with a graph; None when there are no graphs. `largest` is always among them.
    """

    def __init__(self, largest: int, captured: Iterable[int] | None = None) -> None:
        every = range(1, largest + 1) if captured is None else sorted({*captured, largest})
        self.widths = tuple(width for width in every if 0 < width <= largest)
        self._of_nodes = np.array(self.widths)[np.searchsorted(self.widths, np.arange(1, largest + 1))]

    @property
    def largest(self) -> int:
        """Nodes per request at most."""
        return self.widths[-1]

    def of(self, nodes: int) -> int:
        """The narrowest width that holds `nodes` drafted nodes and the root."""
        return int(self._of_nodes[nodes])

    def of_nodes(self) -> NDArray[np.int64]:
        """`int64[largest]`: `of(n)` for every number of drafted nodes n from 0 on."""
        return self._of_nodes
