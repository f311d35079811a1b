"""The coordinate of a dimension: the one-dimensional array of its name, in the same group."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

from icefloe.errors import InvalidInputError
from icefloe.format import paths
from icefloe.spark.cf_packing import CfPacking
from icefloe.spark.columns import plain

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from icefloe.session import Session
    from icefloe.spark.source import Source

    type Labels = tuple[NDArray[Any], NDArray[np.bool_] | None]
    """Values, and which of them are missing."""


def coordinate_path(session: Session, path: str, axis: int) -> str | None:
    """Where the coordinate of a dimension is; None if it has none."""
    node = session.node(path)
    if node is None or node.array is None or node.array.dimension_names is None:
        return None
    name = node.array.dimension_names[axis]
    if name is None:
        return None
    beside = f"{paths.parent(path).rstrip('/')}/{name}"
    found = session.node(beside)
    if found is None or found.array is None or (beside == path and len(node.array.shape) != 1):
        return None
    length = node.array.shape[axis].array_length
    fits = [side.array_length for side in found.array.shape] == [length]
    return beside if fits else None


def labelled_axes(
    session: Session, path: str, columns: Sequence[str], wanted: bool | Collection[str]
) -> tuple[bool, ...]:
    """Which dimensions are told by the labels of their coordinate; the others are by position.

    Args:
        session: where the array is.
        path: of the array.
        columns: the column of each dimension.
        wanted: True: those that have a coordinate; False: none; or the columns of those.

    Raises:
        InvalidInputError: a column is of no dimension, or its dimension has no coordinate.
    """
    # A coordinate that is read as an array itself tells its values, and where they are.
    has = [coordinate_path(session, path, axis) not in (None, path) for axis in range(len(columns))]
    if isinstance(wanted, bool):
        return tuple(wanted and each for each in has)
    for name in wanted:
        if name not in columns:
            raise InvalidInputError(
                f"coordinates: no dimension of {path} has such a column as {name!r}; there are "
                f"{', '.join(columns)}",
                kind="unknown-column",
            )
        if not has[columns.index(name)]:
            raise InvalidInputError(
                f"coordinates: the dimension of column {name!r} has no coordinate: {path} has "
                "positions there",
                kind="no-coordinate",
            )
    return tuple(name in wanted for name in columns)


@lru_cache(maxsize=32)
def labels_of(source: Source, path: str, axis: int, decode: bool) -> Labels:
    """The labels of a dimension that has a coordinate, by position, as Spark gets them.

    Tasks of one process share them.
    """
    session = source.open()
    beside = coordinate_path(session, path, axis)
    if beside is None:
        raise InvalidInputError(f"dimension {axis} of {path} has no coordinate")
    array = zarr.open_array(session.store, path=beside.strip("/"), mode="r")
    values, missing = CfPacking.of(array, decode=decode).decode(np.asarray(array[...]))
    # As Spark sees them: compared in a smaller type, or a finer unit, they would differ from that.
    return plain(values.astype("f4") if values.dtype == np.dtype("f2") else values), missing
