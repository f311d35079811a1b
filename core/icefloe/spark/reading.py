"""Arrays in long form: a row for each element, with a column for each dimension and the value."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import DataSourceReader, InputPartition

from icefloe.errors import InvalidInputError
from icefloe.spark.box_reading import BoxReader
from icefloe.spark.chunk_grid import ChunkGrid, blocks, clip, volume
from icefloe.spark.coordinates import coordinate_path, coordinate_values
from icefloe.spark.options import names_in, open_session, required
from icefloe.spark.planning import array_node
from icefloe.spark.source import Source
from icefloe.spark.task_errors import marked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from icefloe.session import Session
    from icefloe.spark.chunk_grid import Box, Span
    from icefloe.spark.options import Options

PARTITION_ELEMENTS = 2**21
BATCH_ROWS = 100_000
POSITION = "bigint"

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


@dataclass(frozen=True, slots=True)
class LongForm:
    """One array as a table.

    Attributes:
        source: the snapshot.
        path: of the array.
        names: of the dimensions' columns.
        by_coordinate: which of them hold values of a coordinate; the others hold positions.
        value: the name of the column of values.
        columns: those that are wanted, in order.
    """

    source: Source
    path: str
    names: tuple[str, ...]
    by_coordinate: tuple[bool, ...]
    value: str
    columns: tuple[str, ...]

    @classmethod
    def of(cls, options: Options) -> LongForm:
        session = open_session(options)
        path = "/" + required(options, "array").strip("/")
        grid = ChunkGrid.of(array_node(session, path))
        positions = options.get("coordinates", "true").lower() == "false"
        by_coordinate = tuple(
            not positions and coordinate_path(session, path, axis) not in (None, path)
            for axis in range(len(grid.axes))
        )
        names = tuple(name or f"dim_{axis}" for axis, name in enumerate(grid.names))
        value = options.get("value", "value")
        if len({*names, value}) <= len(names):
            raise InvalidInputError(
                f"columns {names} and {value}: name them apart with the option value"
            )
        columns = tuple(names_in(options, "columns")) or (*names, value)
        if unknown := set(columns) - {*names, value}:
            raise InvalidInputError(f"there is no column {', '.join(sorted(unknown))}")
        source = Source.of(session.context, session.snapshot_id)
        return cls(source, path, names, by_coordinate, value, columns)

    def schema(self) -> str:
        return ", ".join(f"`{name}` {self._type(name)[0]}" for name in self.columns)

    def axis_values(self, session: Session, axis: int) -> NDArray[Any] | None:
        """What a dimension's column holds, by position; None if it holds the position."""
        return coordinate_values(session, self.path, axis) if self.by_coordinate[axis] else None

    def batches(self, elements: Box) -> Iterator[pa.RecordBatch]:
        """The rows of a box of elements."""
        shape = tuple(stop - start for start, stop in elements)
        columns = [np.broadcast_to(self._column(name, elements), shape) for name in self.columns]
        types = [self._type(name)[1] for name in self.columns]
        # Parts that lie in one piece, so that a column is copied once at most.
        for box in blocks(tuple((0, length) for length in shape), BATCH_ROWS):
            part = tuple(slice(*span) for span in box)
            arrays = [
                pa.array(column[part].reshape(-1)).cast(kind)
                for column, kind in zip(columns, types, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, list(self.columns))

    def _column(self, name: str, elements: Box) -> NDArray[Any]:
        """What a column holds in a box of elements, to be broadcast to its shape."""
        if name == self.value:
            return _plain(_reader(self.source, self.path).read(elements))
        path, axis = self._array_of(name), self.names.index(name)
        span = elements[axis]
        along = np.arange(*span) if path is None else _reader(self.source, path).read((span,))
        return _plain(along).reshape([-1 if at == axis else 1 for at in range(len(elements))])

    def _type(self, name: str) -> tuple[str, pa.DataType]:
        path = self._array_of(name)
        if path is None:
            return POSITION, pa.int64()
        return column_type(_reader(self.source, path).array.dtype)

    def _array_of(self, name: str) -> str | None:
        """The array whose values a column holds; None if it holds positions."""
        if name == self.value:
            return self.path
        axis = self.names.index(name)
        if not self.by_coordinate[axis]:
            return None
        return coordinate_path(self.source.open(), self.path, axis)


@lru_cache(maxsize=8)
def _reader(source: Source, path: str) -> BoxReader:
    """Tasks of one process share it, with the references that it has read."""
    return BoxReader(source.open(), path)


@dataclass(frozen=True, slots=True)
class Boxes(InputPartition):
    """The elements that one task reads."""

    box: Box


@dataclass
class ArrayReader(DataSourceReader):
    """Reads an array in long form, a task for some chunks that lie together."""

    table: LongForm
    bounds: dict[int, list[Span]] = field(default_factory=dict)
    """What filters leave of dimensions."""

    @marked()
    def partitions(self) -> list[InputPartition]:
        session = self.table.source.open()
        grid = ChunkGrid.of(array_node(session, self.table.path))
        elements = grid.select(None)
        for axis, spans in self.bounds.items():
            for span in spans:
                limits = tuple(span if at == axis else side for at, side in enumerate(elements))
                elements = clip(elements, limits)
        if not volume(elements):
            return []
        limit = PARTITION_ELEMENTS // max(grid.largest_chunk(), 1)
        boxes = blocks(grid.chunks(elements), limit)
        return [Boxes(clip(grid.elements(box), elements)) for box in boxes]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Without partitions, Spark asks for one that does not exist.
        if isinstance(partition, Boxes):
            with marked():
                yield from self.table.batches(partition.box)


def _plain(values: NDArray[Any]) -> NDArray[Any]:
    """Values as Arrow takes them."""
    if values.dtype.kind == "M":
        return values.astype("M8[us]", copy=False)
    if values.dtype.kind == "T":
        return values.astype(object)
    native: NDArray[Any] = values.astype(values.dtype.newbyteorder("="), copy=False)
    return native
