"""Arrays from arrays: functions of blocks, which may see their neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import lcm
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import zarr

from icefloe.errors import AlreadyExistsError, InvalidInputError
from icefloe.spark.cf_packing import CfPacking, require_plain
from icefloe.spark.chunk_grid import Axis, ChunkGrid, blocks, clip
from icefloe.spark.context import spark_context
from icefloe.spark.ingesting import write_pieces
from icefloe.spark.planning import array_node, plan
from icefloe.spark.writing import BLOCK_BYTES, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

    from icefloe.session import Session
    from icefloe.spark.block import Block
    from icefloe.spark.chunk_grid import Box, Selection
    from icefloe.spark.ingesting import Piece
    from icefloe.spark.writing import Staged

    type Outputs = str | Mapping[str, Mapping[str, Any] | None]
    type Boundary = Literal["reflect", "nearest", "periodic"] | float | None

_BLOCKS_PER_TASK = 16
_CHOICE = "Say decode=True to compute with what they mean, or decode=False with what is stored"
_TASKS_PER_CORE = 3


def transform(
    spark: SparkSession,
    session: Session,
    outputs: Outputs,
    function: Callable[..., Any],
    *,
    inputs: Sequence[str],
    halo: Mapping[str, int] | None = None,
    boundary: Boundary | Mapping[str, Boundary] = None,
    region: Selection | None = None,
    decode: bool | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> Staged:
    """Write arrays as a function of others, block by block; see `write`.

    Several outputs are computed together: the function is called once for each block.

    Args:
        spark: see `write`.
        session: a writable one.
        outputs: the path of an array that exists; or by path, None for one that does, and for one
            that does not, what `zarr.create_array` takes. Shape, type, chunks and dimension names
            are those of the first input, if not given.
        function: called with one array for each input, on executors. Gives an array of their shape,
            or of the block's, without halo; for several outputs a mapping by path, or a sequence in
            their order.
        inputs: paths of arrays of one shape. They are read as they were before the write.
        halo: by dimension name, how many neighbours on either side the function sees. What it gives
            for them is cut off.
        boundary: what it sees beyond the ends of the arrays, for all dimensions or by name: None is
            nothing, so that blocks there are smaller; `reflect` is the values mirrored, `nearest`
            the last one, `periodic` those of the other end; a number is that number.
        region: see `plan`.
        decode: True: the function gets what stored values mean, as floats with NaN where there is
            none (`scale_factor`, `add_offset`, `_FillValue` and the like), and outputs that are
            packed take the same. False: it gets and gives stored values. It has to be said where an
            array is packed.
        block_bytes: blocks hold as many chunks of one output as fit, but at least one. A task holds
            one block of each input and output at a time.

    Raises:
        InvalidInputError: the arrays differ in shape, or an array is packed and `decode` is not
            given.
        NotFoundError: there is no such array.
        AlreadyExistsError: there is an array where one is to be created.
    """
    if not inputs:
        raise InvalidInputError("a function of no arrays: use write")
    wanted = {outputs: None} if isinstance(outputs, str) else outputs
    if decode is None:
        for each in (*inputs, *(path for path, options in wanted.items() if options is None)):
            require_plain(CfPacking.of(_open(session, each)), _CHOICE)
    paths = _create(session, wanted, inputs[0], decode=bool(decode))
    shape = _open(session, paths[0]).shape
    for each in (*paths, *inputs):
        if (other := _open(session, each).shape) != shape:
            raise InvalidInputError(
                f"{each} has the shape {other}, and {paths[0]} has {shape}", kind="shape-mismatch"
            )
    names = ChunkGrid.of(array_node(session, paths[0])).names
    edges = _edges(names, halo, boundary)
    compute = _Function(tuple(inputs), function, tuple(paths), edges, shape, bool(decode))
    if len(paths) == 1:
        whole = plan(session, paths, region)
        return write(spark, whole, compute, decode=False, block_bytes=block_bytes)
    cores = spark_context(spark).defaultParallelism
    items = _tasks(session, paths, region, block_bytes, cores)
    return write_pieces(spark, session, items, compute.pieces, paths=paths, what="blocks")


def _create(
    session: Session,
    outputs: Mapping[str, Mapping[str, Any] | None],
    like: str,
    *,
    decode: bool,
) -> list[str]:
    """Create the outputs that are to be; the paths of all."""
    model = _open(session, like)
    names = ChunkGrid.of(array_node(session, "/" + like.strip("/"))).names
    dtype = CfPacking.of(model, decode=decode).float_dtype
    defaults: dict[str, Any] = {"shape": model.shape, "dtype": dtype, "chunks": model.chunks}
    defaults["dimension_names"] = names if any(names) else None
    paths = ["/" + path.strip("/") for path in outputs]
    for path, options in zip(paths, outputs.values(), strict=True):
        if options is None:
            continue
        if session.node(path) is not None:
            raise AlreadyExistsError(
                f"there is a node at {path}: give None to write to it", kind="node-already-exists"
            )
        zarr.create_array(session.store, name=path.strip("/"), **(defaults | {**options}))
    return paths


@dataclass(frozen=True, slots=True)
class _Edge:
    """What blocks see beyond their ends along one dimension."""

    reach: int = 0
    boundary: Boundary = None


def _edges(
    names: Sequence[str | None],
    halo: Mapping[str, int] | None,
    boundary: Boundary | Mapping[str, Boundary],
) -> tuple[_Edge, ...]:
    halo = halo or {}
    known = boundary if isinstance(boundary, Mapping) else {}
    if unknown := {*halo, *known} - set(names):
        raise InvalidInputError(f"no dimension is named {', '.join(sorted(unknown))}: {names}")
    edges = []
    for name in names:
        beyond = known.get(str(name)) if isinstance(boundary, Mapping) else boundary
        if isinstance(beyond, str) and beyond not in {"reflect", "nearest", "periodic"}:
            raise InvalidInputError(f"no boundary is called {beyond!r}")
        edges.append(_Edge(halo.get(str(name), 0), beyond))
    return tuple(edges)


@dataclass(frozen=True, slots=True)
class _Function:
    inputs: tuple[str, ...]
    function: Callable[..., Any]
    outputs: tuple[str, ...]
    edges: tuple[_Edge, ...]
    shape: tuple[int, ...]
    decode: bool

    def __call__(self, block: Block) -> NDArray[Any]:
        (values,) = self._values(block.open, [(part.start, part.stop) for part in block.slices])
        return values

    def pieces(self, session: Session, boxes: Sequence[Box]) -> Iterator[Piece]:
        """The values of some blocks, for all outputs."""

        def open_array(path: str) -> zarr.Array[Any]:
            return _open(session, path)

        for box in boxes:
            slices = [slice(*span) for span in box]
            for path, values in zip(self.outputs, self._values(open_array, box), strict=True):
                yield path, slices, values

    def _values(
        self, open_array: Callable[[str], zarr.Array[Any]], box: Sequence[tuple[int, int]]
    ) -> list[NDArray[Any]]:
        seen, inner = self._spans(box)
        result = self.function(*(self._read(open_array(path), seen) for path in self.inputs))
        block = tuple(stop - start for start, stop in box)
        whole = tuple(stop - start for start, stop in seen)
        found = []
        for path, values in zip(self.outputs, self._parts(result), strict=True):
            if values.shape == whole:
                found.append(self._stored(open_array, path, values[inner]))
            elif values.shape == block:
                found.append(self._stored(open_array, path, values))
            else:
                raise InvalidInputError(
                    f"the function made {values.shape} of {whole}", kind="wrong-block-shape"
                )
        return found

    def _stored(
        self, open_array: Callable[[str], zarr.Array[Any]], path: str, values: NDArray[Any]
    ) -> NDArray[Any]:
        packing = CfPacking.of(open_array(path), decode=self.decode)
        return packing.encode(values) if packing.attributes else values

    def _parts(self, result: Any) -> list[NDArray[Any]]:
        """What the function gave for each output."""
        if isinstance(result, Mapping):
            given = {"/" + path.strip("/"): values for path, values in result.items()}
            if given.keys() != {*self.outputs}:
                raise InvalidInputError(f"the function gave {[*given]} for {[*self.outputs]}")
            return [np.asarray(given[path]) for path in self.outputs]
        if len(self.outputs) == 1:
            return [np.asarray(result)]
        if not isinstance(result, tuple | list) or len(result) != len(self.outputs):
            raise InvalidInputError(
                f"the function gives {len(self.outputs)} arrays, as a mapping or a tuple"
            )
        return [np.asarray(values) for values in result]

    def _spans(self, box: Sequence[tuple[int, int]]) -> tuple[Box, tuple[slice, ...]]:
        """What the function sees, maybe beyond the array; and where the block is in it."""
        seen, inner = [], []
        for (start, stop), edge, length in zip(box, self.edges, self.shape, strict=True):
            low, high = start - edge.reach, stop + edge.reach
            if edge.boundary is None:
                low, high = max(low, 0), min(high, length)
            seen.append((low, high))
            inner.append(slice(start - low, stop - low))
        return tuple(seen), tuple(inner)

    def _read(self, array: zarr.Array[Any], seen: Box) -> NDArray[Any]:
        limits = tuple((0, length) for length in self.shape)
        packing = CfPacking.of(array, decode=self.decode)
        if clip(seen, limits) == seen:
            return packing.decode_to_nan(np.asarray(array[tuple(slice(*span) for span in seen)]))
        places: list[Any] = []
        for (low, high), edge, length in zip(seen, self.edges, self.shape, strict=True):
            if edge.boundary == "periodic":
                places.append(np.arange(low, high) % length)
            else:
                places.append(slice(max(low, 0), min(high, length)))
        values = packing.decode_to_nan(np.asarray(array.oindex[tuple(places)]))
        for axis, edge in enumerate(self.edges):
            low, high = seen[axis]
            values = _padded(values, axis, max(-low, 0), max(high - self.shape[axis], 0), edge)
        return values


def _padded(values: NDArray[Any], axis: int, before: int, after: int, edge: _Edge) -> NDArray[Any]:
    """Values with what is beyond the ends of the array along one axis."""
    if edge.boundary in (None, "periodic") or not before + after:
        return values
    width = [(0, 0)] * values.ndim
    width[axis] = before, after
    if isinstance(edge.boundary, str):
        return np.pad(values, width, "symmetric" if edge.boundary == "reflect" else "edge")
    return np.pad(values, width, constant_values=edge.boundary)


def _tasks(
    session: Session, paths: Sequence[str], region: Selection | None, block_bytes: int, cores: int
) -> list[list[Box]]:
    """Blocks that share no chunk of any array with each other, some for each task."""
    grids = [ChunkGrid.of(array_node(session, path)) for path in paths]
    axes = []
    for sides in zip(*(grid.axes for grid in grids), strict=True):
        size = lcm(*(axis.size for axis in sides))
        if size:
            size = min(size, max(sides[0].length, 1))
            axes.append(Axis(sides[0].length, -(-sides[0].length // size), size))
        elif len({*sides}) == 1:
            axes.append(sides[0])
        else:
            raise InvalidInputError(f"the chunks of {', '.join(paths)} differ, and in shape, too")
    grid = ChunkGrid(tuple(axes), grids[0].names)
    selection = grid.select(region)
    largest = max(_open(session, path).dtype.itemsize for path in paths) * grid.largest_chunk()
    boxes = [
        clip(grid.elements(box), selection)
        for box in blocks(grid.chunks(selection), block_bytes // max(largest, 1))
    ]
    size = min(max(len(boxes) // (cores * _TASKS_PER_CORE), 1), _BLOCKS_PER_TASK)
    return [boxes[at : at + size] for at in range(0, len(boxes), size)]


def _open(session: Session, path: str) -> zarr.Array[Any]:
    array_node(session, "/" + path.strip("/"))
    return zarr.open_array(session.store, path=path.strip("/"), mode="r")
