"""Which kernel a verify step runs on: what was measured on this GPU, unless the settings name one."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from agentspec.kernels.kernel_table import DEFAULT
from agentspec.kernels.verify_kernels import VerifyKernel, exact_kernels

if TYPE_CHECKING:
    from agentspec.kernels.flashinfer_tree.variant import TreeVariant
    from agentspec.kernels.kernel_table import KernelTable

logger = logging.getLogger(__name__)


class KernelChoice:
    """The choices of one backend.

    Args:
        table: measurements of this GPU and form; None where there are none.
        forced: `sglang.verify_kernel`.
        variant: the form of the deployment.
        width: rows of a request.
        group: query heads per key head.

    Raises:
        ValueError: the settings force a kernel that is not exact for this width and form.
    """

    def __init__(self, table: KernelTable | None, forced: str, variant: TreeVariant, width: int, group: int) -> None:
        self._exact = exact_kernels(variant, width, group)
        self._table = table
        self._width = width
        self._forced = None if forced == "auto" else VerifyKernel(forced)
        if self._forced is not None and self._forced not in self._exact:
            raise ValueError(
                f"sglang.verify_kernel={forced} is not exact for {width} rows of {group} heads per key head in the "
                f"form {variant.name}; choose one of {', '.join(sorted(self._exact))}, or auto"
            )

    def of(self, batch: int, context: int | None) -> VerifyKernel:
        """The kernel for a step.

        Args:
            batch: requests.
            context: committed tokens of the longest; None for a graph, which is captured once for all contexts.
        """
        if self._forced is not None:
            return self._forced
        if self._table is None:
            return DEFAULT
        return self._table.fastest(self._width, batch, context, self._exact)

    @property
    def possible(self) -> frozenset[VerifyKernel]:
        """Every kernel that `of` may name."""
        if self._forced is not None:
            return frozenset({self._forced})
        return frozenset({DEFAULT}) if self._table is None else self._exact
