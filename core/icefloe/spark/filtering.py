"""Filters on dimensions: which chunks they rule out. Spark has them since 4.1."""

from __future__ import annotations

import logging
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from icefloe.spark.reading import ArrayReader
from icefloe.spark.task_errors import marked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray
    from pyspark.sql.datasource import Filter

    from icefloe.spark.chunk_grid import Span

_END = 2**63

logger = logging.getLogger(__name__)


class FilteringReader(ArrayReader):
    """Leaves out chunks that filters on dimensions rule out; Spark checks the rows that stay."""

    # Spark refuses a reader that has this method where filters are off, which is its default.
    @property
    def pushFilters(self) -> Callable[[list[Filter]], Iterable[Filter]]:  # noqa: N802
        if _are_filters_off():
            _tell_once()
            return super().pushFilters
        return self._push

    @marked()
    def _push(self, filters: list[Filter]) -> Iterable[Filter]:
        for each in filters:
            name = getattr(each, "attribute", ("",))[0]
            if name in self.table.names:
                axis = self.table.names.index(name)
                labels = self.table.labels(axis)
                span = position_bounds(each) if labels is None else bounds(each, *labels)
                if span is not None:
                    self.bounds.setdefault(axis, []).append(span)
        return filters


def _are_filters_off() -> bool:
    """Whether Spark plans the read without filters, and asks for the method to refuse it.

    Nothing else tells: the setting is a variable of whoever asks.
    """
    return sys._getframe(2).f_locals.get("enable_pushdown") is False


@lru_cache(maxsize=1)
def _tell_once() -> None:
    logger.warning(
        "filters leave out no chunks, and rows are filtered after they were read: set "
        "spark.sql.python.filterPushdown.enabled to true"
    )


def position_bounds(condition: Filter) -> Span | None:
    """The positions that may meet a condition; None: it does not say."""
    match condition:
        case EqualTo(value=value) | EqualNullSafe(value=value) if value is not None:
            return value, value + 1
        case GreaterThan(value=value):
            return value + 1, _END
        case GreaterThanOrEqual(value=value):
            return value, _END
        case LessThan(value=value):
            return 0, value
        case LessThanOrEqual(value=value):
            return 0, value + 1
        case In(value=wanted) if wanted and None not in wanted:
            return min(wanted), max(wanted) + 1
        case _:
            return None


def bounds(
    condition: Filter, values: NDArray[Any], missing: NDArray[np.bool_] | None = None
) -> Span | None:
    """From the first to the last of the values that may meet a condition; None: it does not say.

    What is missing meets none: it is null.
    """
    if getattr(condition, "value", None) is None:
        return None
    if values.dtype.kind == "f" and bool(np.isnan(values).any()):
        # Spark orders NaN after all numbers, numpy nowhere.
        return None
    met = _met(condition, values)
    if met is None:
        return None
    if missing is not None:
        met = met & ~missing
    rows = np.flatnonzero(met)
    return (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)


def _met(condition: Filter, values: NDArray[Any]) -> NDArray[np.bool_] | None:
    match condition:
        case In(value=wanted):
            return np.isin(values, [_comparable(value, values) for value in wanted])
        case EqualTo(value=value) | EqualNullSafe(value=value):
            compare: np.ufunc = np.equal
        case GreaterThan(value=value):
            compare = np.greater
        case GreaterThanOrEqual(value=value):
            compare = np.greater_equal
        case LessThan(value=value):
            compare = np.less
        case LessThanOrEqual(value=value):
            compare = np.less_equal
        case _:
            return None
    met: NDArray[np.bool_] = compare(values, _comparable(value, values))
    return met


def _comparable(value: Any, values: NDArray[Any]) -> Any:
    return np.datetime64(value) if values.dtype.kind == "M" else value
