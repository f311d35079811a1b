"""From rows to chunks: where a row's value belongs, and writing sorted rows chunk by chunk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from icefloe.errors import InvalidInputError
from icefloe.spark.chunk_grid import volume
from icefloe.spark.chunk_writing import ChunkWriter
from icefloe.spark.regions import base_refs
from icefloe.spark.row_columns import column_in, find_labels, packing_of, stored_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from icefloe.chunk_edits import EditColumns
    from icefloe.format.chunk_refs import ChunkRefs
    from icefloe.session import Session
    from icefloe.spark.cf_packing import CfPacking
    from icefloe.spark.planning import ArrayPlan, Cell
    from icefloe.spark.source import Source

type OnDuplicate = Literal["error", "any"]

REGION, CHUNK, VALUE = "_region", "_chunk", "_value"


@dataclass(frozen=True, slots=True)
class RowTarget:
    """Where rows go.

    Attributes:
        source: the snapshot that is written over.
        array: which array of it, and how it is split.
        columns: the column of each dimension.
        labelled: which of them hold labels of the coordinate; the others hold positions.
        value: the column of values.
        decode: whether values and labels are what the stored ones mean.
        on_duplicate: what to do where two rows have one place.
    """

    source: Source
    array: ArrayPlan
    columns: tuple[str, ...]
    labelled: tuple[bool, ...]
    value: str
    decode: bool = True
    on_duplicate: OnDuplicate = "error"

    @property
    def cell_grid(self) -> tuple[int, ...]:
        """Cells along each axis."""
        pairs = zip(self.array.grid.limits, self.array.sizes, strict=True)
        return tuple(-(-limit // size) for limit, size in pairs)

    @property
    def packing(self) -> CfPacking:
        """How the array's values are packed."""
        return packing_of(self.source, self.array.path, self.decode)

    def cell(self, region: int) -> Cell:
        return tuple(int(at) for at in np.unravel_index(region, self.cell_grid))


@dataclass(frozen=True, slots=True, eq=False)
class Located:
    """Rows with the positions of their elements, and the numbers of their regions and chunks."""

    positions: list[NDArray[np.int64]]
    region: NDArray[np.int64]
    chunk: NDArray[np.int64]
    values: NDArray[Any]

    def __len__(self) -> int:
        return len(self.chunk)

    def take(self, rows: Any) -> Located:
        return Located(
            [column[rows] for column in self.positions],
            self.region[rows],
            self.chunk[rows],
            self.values[rows],
        )


def locate(target: RowTarget, batch: pa.RecordBatch) -> Located:
    """Raises InvalidInputError for a row without a place in the array, or a value it can take."""
    positions = []
    for axis, (column, side) in enumerate(zip(target.columns, target.array.grid.axes, strict=True)):
        given = column_in(batch, column)
        if given.null_count:
            raise InvalidInputError(
                f"column {column} has nulls: filter out the rows, which have no place",
                kind="null-in-row",
            )
        if target.labelled[axis]:
            positions.append(find_labels(target, axis, given))
            continue
        if not pa.types.is_integer(given.type):
            raise InvalidInputError(
                f"column {column} holds {given.type}: positions are whole numbers",
                kind="position-not-whole",
            )
        found = given.to_numpy(zero_copy_only=False).astype(np.int64)
        if len(outside := found[(found < 0) | (found >= side.length)]):
            raise InvalidInputError(
                f"{column} = {outside[0]} is no position in {side.length} elements of "
                f"{target.array.path}: resize it first, or leave the row out",
                kind="row-outside-array",
            )
        positions.append(found)
    chunks = [
        side.chunks_of(column)
        for side, column in zip(target.array.grid.axes, positions, strict=True)
    ]
    cells = [column // size for column, size in zip(chunks, target.array.sizes, strict=True)]
    zero = np.zeros(batch.num_rows, np.int64)
    region = np.ravel_multi_index(tuple(cells), target.cell_grid) if cells else zero
    chunk = np.ravel_multi_index(tuple(chunks), target.array.grid.limits) if chunks else zero
    return Located(positions, region, chunk, stored_values(target, batch))


def carried(dtype: np.dtype[Any]) -> tuple[str, str]:
    """The type in which stored values go through the shuffle, for Spark and for numpy.

    Numbers travel as whole numbers of their size, so that no bit of them changes.
    """
    if dtype.kind in "UTO":
        return "string", "O"
    return {1: "tinyint", 2: "smallint", 4: "int", 8: "bigint"}[
        dtype.itemsize
    ], f"i{dtype.itemsize}"


def to_batch(rows: Located) -> pa.RecordBatch:
    """What goes through the shuffle."""
    arrays = [pa.array(rows.region), pa.array(rows.chunk)]
    arrays += [pa.array(column) for column in rows.positions]
    names = [REGION, CHUNK, *(f"_{axis}" for axis in range(len(rows.positions))), VALUE]
    kind = carried(rows.values.dtype)[1]
    values = rows.values if kind == "O" else np.ascontiguousarray(rows.values).view(kind)
    return pa.RecordBatch.from_arrays([*arrays, pa.array(values)], names)


def from_batch(target: RowTarget, batch: pa.RecordBatch) -> Located:
    def column(name: str) -> NDArray[Any]:
        values: NDArray[Any] = batch.column(name).to_numpy(zero_copy_only=False)
        return values

    values, stored = column(VALUE), target.packing.stored
    return Located(
        [column(f"_{axis}") for axis in range(len(target.columns))],
        column(REGION),
        column(CHUNK),
        values if stored.kind in "UTO" else np.ascontiguousarray(values).view(stored),
    )


def by_chunk(batches: Iterable[Located]) -> Iterator[Located]:
    """Rows that are sorted by chunk, all of one chunk at a time."""
    waiting: list[Located] = []
    for rows in batches:
        cuts = np.flatnonzero(rows.chunk[1:] != rows.chunk[:-1]) + 1
        for part in np.split(np.arange(len(rows)), cuts):
            if not len(part):
                continue
            piece = rows.take(part)
            if waiting and waiting[0].chunk[0] != piece.chunk[0]:
                yield joined(waiting)
                waiting = []
            waiting.append(piece)
    if waiting:
        yield joined(waiting)


class RowWriter:
    """Writes rows into chunks of one array, over what the target's source has."""

    def __init__(self, target: RowTarget) -> None:
        self._target = target
        self._session = target.source.open()
        self._writer = ChunkWriter(self._session, target.array.path, target.array.grid)
        self._base: tuple[Cell, ChunkRefs] | None = None

    @property
    def session(self) -> Session:
        return self._session

    def write(self, rows: Located) -> None:
        """Write all rows of one chunk.

        Raises:
            InvalidInputError: two of them have one place.
        """
        grid, array = self._target.array.grid, self._target.array
        coords = tuple(int(at) for at in np.unravel_index(int(rows.chunk[0]), grid.limits))
        chunk = tuple((at, at + 1) for at in coords)
        elements = grid.elements(chunk)
        shape = tuple(stop - start for start, stop in elements)
        inner = [
            column - start for column, (start, _) in zip(rows.positions, elements, strict=True)
        ]
        flat = np.ravel_multi_index(tuple(inner), shape) if shape else np.zeros(len(rows), np.int64)
        distinct, first = np.unique(flat, return_index=True)
        if len(distinct) < len(flat) and self._target.on_duplicate == "error":
            twice = int(np.setdiff1d(np.arange(len(flat)), first)[0])
            place = tuple(int(column[twice]) for column in rows.positions)
            raise InvalidInputError(
                f"several rows have a value for {place} of {array.path}", kind="duplicate-cell"
            )
        if len(distinct) == volume(elements):
            whole = np.empty(shape, self._writer.dtype)
        elif self._exists(self._target.cell(int(rows.region[0])), coords):
            whole = self._writer.read(elements)
        else:
            whole = np.full(shape, self._writer.fill, self._writer.dtype)
        whole.reshape(-1)[flat] = rows.values
        self._writer.write_chunks(chunk, whole)

    def finish(self) -> EditColumns:
        return self._writer.finish()

    def _exists(self, cell: Cell, coords: tuple[int, ...]) -> bool:
        if self._base is None or self._base[0] != cell:
            array = self._target.array
            refs = base_refs(self._session, array.path, array.cell_box(cell))
            self._base = cell, refs.sorted()
        return self._base[1].row(coords) is not None


def joined(parts: list[Located]) -> Located:
    columns = zip(*(part.positions for part in parts), strict=True)
    return Located(
        [np.concatenate(column) for column in columns],
        np.concatenate([part.region for part in parts]),
        np.concatenate([part.chunk for part in parts]),
        np.concatenate([part.values for part in parts]),
    )
