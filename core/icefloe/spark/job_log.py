"""What Spark jobs log: what will be done, and what was done."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.spark.planning import ArrayPlan
    from icefloe.spark.writing import StagedArray

logger = logging.getLogger("icefloe.spark")
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


class JobLog:
    """The first and the last line of one job."""

    def __init__(self, plan: str) -> None:
        self._begun = time.monotonic()
        logger.info("%s", plan)

    def done(self, arrays: Sequence[StagedArray], base: str) -> None:
        logger.info(
            "wrote %s: %s chunks of %s, %s manifests, in %.1f s, on snapshot %s; not committed yet",
            ", ".join(array.path for array in arrays) or "nothing",
            f"{sum(array.chunks for array in arrays):,}",
            size(sum(array.stored_bytes for array in arrays)),
            f"{sum(array.regions for array in arrays):,}",
            time.monotonic() - self._begun,
            base,
        )


def told_plan(what: str, arrays: Sequence[ArrayPlan], tasks: int) -> str:
    """One line: arrays, regions, tasks, chunks, and about how many bytes of values."""
    chunks = sum(array.chunks for array in arrays)
    values = sum(array.chunks * array.grid.largest_chunk() * array.itemsize for array in arrays)
    regions = sum(len(array.cells) for array in arrays)
    carried = sum(len(array.carried) for array in arrays)
    return (
        f"{what} {', '.join(array.path for array in arrays)}: {chunks:,} chunks in {regions:,} "
        f"regions by {tasks:,} tasks, about {size(values)} of values"
        + (f"; {carried:,} more regions carried over" if carried else "")
    )


def size(count: float) -> str:
    """A number of bytes for people."""
    for unit in _UNITS[:-1]:
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} {_UNITS[-1]}"
