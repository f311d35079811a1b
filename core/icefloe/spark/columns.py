"""The values of arrays as columns of Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]

from icefloe.errors import InvalidInputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from icefloe.spark.chunk_grid import ChunkGrid

# By numpy's kind and size; unsigned numbers take the next larger type.
_TYPES = {
    "b1": ("boolean", pa.bool_()),
    "i1": ("tinyint", pa.int8()),
    "i2": ("smallint", pa.int16()),
    "i4": ("int", pa.int32()),
    "i8": ("bigint", pa.int64()),
    "u1": ("smallint", pa.int16()),
    "u2": ("int", pa.int32()),
    "u4": ("bigint", pa.int64()),
    "u8": ("decimal(20,0)", pa.decimal128(20, 0)),
    "f2": ("float", pa.float32()),
    "f4": ("float", pa.float32()),
    "f8": ("double", pa.float64()),
    "M8": ("timestamp_ntz", pa.timestamp("us")),
}


def column_type(dtype: np.dtype[Any]) -> tuple[str, pa.DataType]:
    """The types of a column, for Spark and for Arrow.

    Raises:
        InvalidInputError: there is none for this dtype.
    """
    if dtype.kind in "UTO":
        return "string", pa.string()
    found = _TYPES.get(f"{dtype.kind}{dtype.itemsize}")
    if found is None:
        raise InvalidInputError(f"Spark has no column type for {dtype}", kind="unsupported-dtype")
    return found


def dimension_columns(grid: ChunkGrid) -> tuple[str, ...]:
    """The columns of an array's dimensions: their names, or their numbers where they have none."""
    return tuple(name or f"dim_{axis}" for axis, name in enumerate(grid.names))


def plain(values: NDArray[Any]) -> NDArray[Any]:
    """Values as Arrow takes them."""
    if values.dtype.kind == "M":
        return values.astype("M8[us]", copy=False)
    if values.dtype.kind == "T":
        return values.astype(object)
    native: NDArray[Any] = values.astype(values.dtype.newbyteorder("="), copy=False)
    return native


def to_arrow(
    values: NDArray[Any], missing: NDArray[np.bool_] | None, kind: pa.DataType
) -> pa.Array:
    """One-dimensional values as a column, null where they are missing."""
    return pa.array(plain(values), mask=missing).cast(kind)
