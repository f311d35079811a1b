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
from icefloe.spark.cf_packing import CfPacking
from icefloe.spark.chunk_grid import ChunkGrid, blocks, clip, volume
from icefloe.spark.columns import column_type, dimension_columns, to_arrow
from icefloe.spark.coordinates import labelled_axes, labels_of
from icefloe.spark.option_list import Use, check_options
from icefloe.spark.options import coordinates_in, flag, names_in, open_session, required
from icefloe.spark.planning import array_node
from icefloe.spark.source import Source
from icefloe.spark.task_errors import marked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from icefloe.spark.chunk_grid import Box, Span
    from icefloe.spark.coordinates import Labels
    from icefloe.spark.options import Options

PARTITION_ELEMENTS = 2**21
BATCH_ROWS = 100_000
POSITION = "bigint"


@dataclass(frozen=True, slots=True)
class LongForm:
    """One array as a table.

    Attributes:
        source: the snapshot.
        path: of the array.
        names: of the dimensions' columns.
        labelled: which of them hold labels of a coordinate; the others hold positions.
        value: the name of the column of values.
        columns: those that are wanted, in order.
        decode: whether values and labels are what the stored ones mean.
    """

    source: Source
    path: str
    names: tuple[str, ...]
    labelled: tuple[bool, ...]
    value: str
    columns: tuple[str, ...]
    decode: bool

    @classmethod
    def of(cls, options: Options) -> LongForm:
        check_options(options, Use.READ)
        session = open_session(options)
        path = "/" + required(options, "array").strip("/")
        names = dimension_columns(ChunkGrid.of(array_node(session, path)))
        labelled = labelled_axes(session, path, names, coordinates_in(options))
        value = options.get("value", "value")
        if len({*names, value}) <= len(names):
            raise InvalidInputError(
                f"columns {names} and {value}: name them apart with the option value"
            )
        columns = tuple(names_in(options, "columns")) or (*names, value)
        if unknown := set(columns) - {*names, value}:
            raise InvalidInputError(
                f"there is no column {', '.join(sorted(unknown))}; there are "
                f"{', '.join((*names, value))}",
                kind="unknown-column",
            )
        source = Source.of(session.context, session.snapshot_id)
        return cls(source, path, names, labelled, value, columns, flag(options, "decode", True))

    def schema(self) -> str:
        return ", ".join(f"`{name}` {self._type(name)[0]}" for name in self.columns)

    def labels(self, axis: int) -> Labels | None:
        """What a dimension's column holds, by position; None if it holds the position."""
        if not self.labelled[axis]:
            return None
        return labels_of(self.source, self.path, axis, self.decode)

    def batches(self, elements: Box) -> Iterator[pa.RecordBatch]:
        """The rows of a box of elements."""
        shape = tuple(stop - start for start, stop in elements)
        columns = [self._column(name, elements) for name in self.columns]
        types = [self._type(name)[1] for name in self.columns]
        # Parts that lie in one piece, so that a column is copied once at most.
        for box in blocks(tuple((0, length) for length in shape), BATCH_ROWS):
            part = tuple(slice(*span) for span in box)

            def cut(values: NDArray[Any]) -> NDArray[Any]:
                return np.broadcast_to(values, shape)[part].reshape(-1)  # noqa: B023

            arrays = [
                to_arrow(cut(values), None if missing is None else cut(missing), kind)
                for (values, missing), kind in zip(columns, types, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, list(self.columns))

    def _column(self, name: str, elements: Box) -> Labels:
        """What a column holds in a box of elements, to be broadcast to its shape."""
        if name == self.value:
            reader, packing = _reader(self.source, self.path, self.decode)
            return packing.decode(reader.read(elements))
        axis = self.names.index(name)
        labels, span = self.labels(axis), slice(*elements[axis])
        along, missing = (np.arange(span.start, span.stop), None) if labels is None else labels
        side = [-1 if at == axis else 1 for at in range(len(elements))]
        if labels is not None:
            along, missing = along[span], None if missing is None else missing[span]
        return along.reshape(side), None if missing is None else missing.reshape(side)

    def _type(self, name: str) -> tuple[str, pa.DataType]:
        if name == self.value:
            return column_type(_reader(self.source, self.path, self.decode)[1].dtype)
        labels = self.labels(self.names.index(name))
        return (POSITION, pa.int64()) if labels is None else column_type(labels[0].dtype)


@lru_cache(maxsize=8)
def _reader(source: Source, path: str, decode: bool) -> tuple[BoxReader, CfPacking]:
    """Tasks of one process share it, with the references that it has read."""
    reader = BoxReader(source.open(), path)
    return reader, CfPacking.of(reader.array, decode=decode)


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
