"""Which kernel is the fastest for which verify step, as measured on a deployment's GPU."""

from __future__ import annotations

import math
import os
import re
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, ValidationError

from agentspec.kernels.verify_kernels import VerifyKernel

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

DEFAULT = VerifyKernel.OWNED
"""What is used where nothing was measured."""


class TableKey(BaseModel):
    """What a table was measured for; it says nothing about anything else.

    Attributes:
        gpu: name of the device.
        flashinfer: version.
        form: `TreeVariant.name`.
        heads: query heads on one GPU.
        kv_heads: key heads on one GPU.
    """

    model_config = ConfigDict(frozen=True)

    gpu: str
    flashinfer: str
    form: str
    heads: int
    kv_heads: int

    def file(self, cache_directory: Path) -> Path:
        """Where the table is kept, `cache_directory` being that of the settings."""
        name = f"{self.gpu} flashinfer-{self.flashinfer} {self.form} h{self.heads} kv{self.kv_heads}"
        return cache_directory / "kernels" / f"{re.sub(r'[^A-Za-z0-9.-]+', '_', name)}.json"


class Measurement(BaseModel):
    """One shape.

    Attributes:
        rows: rows of a request.
        batch: requests.
        context: committed tokens of each.
        microseconds: of the attention of one layer, by kernel.
    """

    model_config = ConfigDict(frozen=True)

    rows: int
    batch: int
    context: int
    microseconds: dict[VerifyKernel, float]


class KernelTable(BaseModel):
    """Measurements of one key.

    Attributes:
        key: see there.
        measurements: by shape.
        excluded: kernels that were wrong or failed here, and how; these are never chosen.
    """

    model_config = ConfigDict(frozen=True)

    key: TableKey
    measurements: tuple[Measurement, ...] = ()
    excluded: dict[VerifyKernel, str] = {}

    @classmethod
    def load(cls, key: TableKey, cache_directory: Path) -> KernelTable | None:
        """The table kept for `key`; None when there is none, or none that can be read."""
        try:
            table = cls.model_validate_json(key.file(cache_directory).read_bytes())
        except (OSError, ValidationError):
            return None
        return table if table.key == key else None

    def save(self, cache_directory: Path) -> Path:
        """Keep the table, for servers started from now on. Returns its file."""
        file = self.key.file(cache_directory)
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh = file.with_suffix(f".{os.getpid()}")
        fresh.write_text(self.model_dump_json(indent=1) + "\n")
        fresh.replace(file)
        return file

    def fastest(
        self, rows: int, batch: int, context: int | None, among: Collection[VerifyKernel] = frozenset(VerifyKernel)
    ) -> VerifyKernel:
        """The kernel for a shape: that of the nearest one measured.

        Args:
            rows: of a request.
            batch: requests.
            context: committed tokens of the longest; None asks for one kernel for all contexts, the one that loses
                least over those measured.
            among: kernels to choose from; `DEFAULT` when none of them was measured.
        """
        near = _nearest(self.measurements, "rows", rows)
        near = _nearest(near, "batch", batch)
        if context is not None:
            near = _nearest(near, "context", context)
        kernels = set(among) - self.excluded.keys()
        kernels.intersection_update(*(one.microseconds for one in near))
        if not near or not kernels:
            return DEFAULT
        # By name where two are equal, so that every rank of a deployment chooses alike.
        return min(sorted(kernels), key=lambda kernel: sum(math.log(one.microseconds[kernel]) for one in near))


def _nearest(measurements: Sequence[Measurement], axis: str, value: int) -> tuple[Measurement, ...]:
    """Those whose `axis` is nearest to `value` by ratio; of two equally near, the larger."""
    found = sorted({getattr(one, axis) for one in measurements}, reverse=True)
    if not found:
        return ()
    best = min(found, key=lambda one: abs(math.log((one + 1) / (value + 1))))
    return tuple(one for one in measurements if getattr(one, axis) == best)
