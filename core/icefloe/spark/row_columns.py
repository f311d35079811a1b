"""The columns of rows that are written: the right ones, of the right types, and what they hold."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import zarr

from icefloe.errors import InvalidInputError
from icefloe.spark.cf_packing import CfPacking
from icefloe.spark.columns import column_type, to_arrow
from icefloe.spark.coordinates import coordinate_path, labels_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from pyspark.sql.types import StructType

    from icefloe.spark.rows import RowTarget
    from icefloe.spark.source import Source

_NUMBERS = frozenset({"tinyint", "smallint", "int", "bigint", "float", "double", "decimal"})
_WHOLE = frozenset({"tinyint", "smallint", "int", "bigint"})
_TIMES = frozenset({"timestamp", "timestamp_ntz", "date"})


@lru_cache(maxsize=32)
def packing_of(source: Source, path: str, decode: bool) -> CfPacking:
    """How the values of an array are packed. Tasks of one process share it."""
    array = zarr.open_array(source.open().store, path=path.strip("/"), mode="r")
    return CfPacking.of(array, decode=decode)


def check_target(target: RowTarget, schema: StructType | None) -> None:
    """Look at all that can be known before a row is.

    Raises:
        InvalidInputError: a column is missing or has a type that does not fit, or labels are
            ambiguous.
    """
    if target.value in target.columns or len({*target.columns}) < len(target.columns):
        raise InvalidInputError(
            f"one column is named twice: {', '.join((*target.columns, target.value))}"
        )
    column_type(target.packing.stored)
    for axis in range(len(target.columns)):
        if target.labelled[axis]:
            _labels(target.source, target.array.path, axis, target.decode)
    if schema is not None:
        _check_types(target, schema)


def _check_types(target: RowTarget, schema: StructType) -> None:
    types = {each.name: each.dataType.simpleString().partition("(")[0] for each in schema}
    for axis, column in enumerate(target.columns):
        found = types[matching(column, [*types])]
        if not target.labelled[axis]:
            if found not in _WHOLE:
                raise _misfit(column, found, "positions are whole numbers")
            continue
        labels = labels_of(target.source, target.array.path, axis, target.decode)[0]
        if found not in _fitting(labels.dtype):
            raise _misfit(column, found, f"the labels of the coordinate are {labels.dtype}")
    found, stored = types[matching(target.value, [*types])], target.packing.stored
    if found not in _fitting(stored):
        raise _misfit(target.value, found, f"{target.array.path} holds {stored}")


def matching(column: str, names: Sequence[str]) -> str:
    """What a column is called among others; Spark does not tell cases apart.

    Raises:
        InvalidInputError: there is no such column, or there are several.
    """
    if column in names:
        return column
    found = [name for name in names if name.lower() == column.lower()]
    if len(found) != 1:
        raise InvalidInputError(
            f"the rows have no column {column!r}; they have {', '.join(names) or 'none'}. Rename "
            "theirs, or say what the dimensions' are called with columns, and that of the values "
            "with value",
            kind="missing-column",
        )
    return found[0]


def column_in(batch: pa.RecordBatch, column: str) -> pa.Array:
    return batch.column(matching(column, batch.schema.names))


def find_labels(target: RowTarget, axis: int, given: pa.Array) -> NDArray[np.int64]:
    """The positions of labels.

    Raises:
        InvalidInputError: one of them is not in the coordinate.
    """
    column = target.columns[axis]
    labels = _labels(target.source, target.array.path, axis, target.decode)
    wanted, lost = _as_labels(given, labels.type, column)
    found = pc.index_in(wanted, value_set=labels, skip_nulls=True)
    unknown = pc.is_null(found).to_numpy(zero_copy_only=False) | lost
    if bool(unknown.any()):
        first = given[int(np.flatnonzero(unknown)[0])].as_py()
        raise InvalidInputError(
            f"{column} = {first} is not among the labels of "
            f"{coordinate_path(target.source.open(), target.array.path, axis)}: add it there first "
            "(resize the array and the coordinate), leave the row out, or give positions with "
            "coordinates=false",
            kind="row-outside-array",
        )
    positions: NDArray[np.int64] = found.to_numpy(zero_copy_only=False).astype(np.int64)
    return positions


def stored_values(target: RowTarget, batch: pa.RecordBatch) -> NDArray[Any]:
    """The values of rows as the array stores them.

    Raises:
        InvalidInputError: it cannot.
    """
    packing, column = target.packing, column_in(batch, target.value)
    missing = pc.is_null(column).to_numpy(zero_copy_only=False) if column.null_count else None
    if missing is not None and not packing.fills:
        raise InvalidInputError(
            f"column {target.value} has nulls, and {packing.path} has no _FillValue to write for "
            "them: filter these rows out",
            kind="null-in-row",
        )
    if pa.types.is_decimal(column.type):
        whole = column.type.scale == 0 and packing.dtype.kind in "iu"
        wider = pa.uint64() if packing.dtype.kind == "u" else pa.int64()
        column = _cast(column, wider if whole else pa.float64(), target.value)
    if missing is not None:
        # Whole numbers with nulls would become floats.
        column = column.fill_null(0)
    values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return packing.encode(values, missing)


def _cast(column: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    try:
        return column.cast(kind)
    except pa.ArrowInvalid as error:
        raise InvalidInputError(f"column {name}: {error}", kind="value-out-of-type") from error


@lru_cache(maxsize=32)
def _labels(source: Source, path: str, axis: int, decode: bool) -> pa.Array:
    """The labels of a dimension, as the reader gives them.

    Raises:
        InvalidInputError: one label is at several places.
    """
    values, missing = labels_of(source, path, axis, decode)
    labels = _unsigned_zero(to_arrow(values, missing, column_type(values.dtype)[1]))
    counts = pc.value_counts(labels.drop_null())
    twice = counts.field("counts").to_numpy() > 1
    if bool(twice.any()):
        label = counts.field("values")[int(np.flatnonzero(twice)[0])].as_py()
        raise InvalidInputError(
            f"{coordinate_path(source.open(), path, axis)} has the label {label} at several "
            "places: rows cannot be written by it. Give positions, with coordinates=false",
            kind="ambiguous-labels",
        )
    return labels


def _as_labels(
    given: pa.Array, kind: pa.DataType, column: str
) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Given labels in the type of the coordinate, and which of them are not in that type."""
    if not _comparable(given.type, kind):
        raise _misfit(column, str(given.type), f"the labels of the coordinate are {kind}")
    wanted = given.cast(kind, safe=False)
    lost = np.zeros(len(given), np.bool_)
    if not (pa.types.is_floating(given.type) and pa.types.is_floating(kind)):
        # 1.5 is not among whole numbers, though its whole part may be. Floats of fewer digits are
        # told by what is next to them.
        lost = ~pc.equal(wanted.cast(given.type, safe=False), given).to_numpy(zero_copy_only=False)
    return _unsigned_zero(wanted), lost


def _unsigned_zero(values: pa.Array) -> pa.Array:
    """The two zeros of floats are one label."""
    return (
        pc.add(values, pa.scalar(0, values.type)) if pa.types.is_floating(values.type) else values
    )


def _comparable(first: pa.DataType, second: pa.DataType) -> bool:
    return _family(first) == _family(second)


def _family(kind: pa.DataType) -> str:
    if pa.types.is_temporal(kind):
        return "time"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    return "text" if pa.types.is_string(kind) or pa.types.is_large_string(kind) else str(kind)


def _fitting(dtype: np.dtype[Any]) -> frozenset[str]:
    """The types of Spark that a type of numpy may be told in."""
    if dtype.kind in "iuf":
        return _NUMBERS
    if dtype.kind == "M":
        return _TIMES
    return frozenset({"boolean" if dtype.kind == "b" else "string"})


def _misfit(column: str, found: str, reason: str) -> InvalidInputError:
    return InvalidInputError(
        f"column {column} holds {found}, and {reason}: cast it", kind="column-type"
    )
