"""Arrays from arrays: functions of blocks with their neighbours, other chunks, coarser copies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

from icefloe.errors import InvalidInputError
from icefloe.spark.chunk_grid import ChunkGrid
from icefloe.spark.planning import array_node, plan
from icefloe.spark.writing import write

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

    from icefloe.session import Session
    from icefloe.spark.block import Block
    from icefloe.spark.chunk_grid import Selection
    from icefloe.spark.writing import Staged

    type Reduce = Callable[..., Any]
    """Like `numpy.mean`: takes an array and the axes to reduce, as `axis`."""


def transform(
    spark: SparkSession,
    session: Session,
    path: str,
    function: Callable[..., Any],
    *,
    inputs: Sequence[str],
    halo: Mapping[str, int] | None = None,
    region: Selection | None = None,
) -> Staged:
    """Write an array as a function of others, block by block; see `write`.

    Args:
        spark: see `write`.
        session: a writable one, which has the array.
        path: what to write.
        function: called with one array for each input, on executors; gives an array of their shape.
        inputs: paths of arrays of the same shape. They are read as they were before the write.
        halo: by dimension name, how many neighbours on either side the function sees. There are
            fewer at the array's ends. What it gives for them is cut off.
        region: see `plan`.

    Raises:
        InvalidInputError: the inputs have another shape.
    """
    wanted = _open(session, path).shape
    for each in inputs:
        if _open(session, each).shape != wanted:
            raise InvalidInputError(f"{each} has another shape than {path}", kind="shape-mismatch")
    compute = _Transform(tuple(inputs), function, dict(halo or {}), wanted)
    return write(spark, plan(session, path, region), compute)


@dataclass(frozen=True, slots=True)
class _Transform:
    inputs: tuple[str, ...]
    function: Callable[..., Any]
    halo: Mapping[str, int]
    shape: tuple[int, ...]

    def __call__(self, block: Block) -> NDArray[Any]:
        reach = [0] * len(self.shape)
        for name, count in self.halo.items():
            reach[block.axis(name)] = count
        sides = list(zip(block.slices, reach, self.shape, strict=True))
        wide = tuple(
            slice(max(part.start - more, 0), min(part.stop + more, length))
            for part, more, length in sides
        )
        result = np.asarray(self.function(*(block.open(each)[wide] for each in self.inputs)))
        seen = tuple(part.stop - part.start for part in wide)
        if result.shape != seen:
            raise InvalidInputError(
                f"the function made {result.shape} of {seen}", kind="wrong-block-shape"
            )
        inner = zip(block.slices, wide, strict=True)
        return result[tuple(slice(a.start - b.start, a.stop - b.start) for a, b in inner)]


def rechunk(
    spark: SparkSession, session: Session, source: str, target: str, chunks: Sequence[int]
) -> Staged:
    """Create a copy of an array with other chunks; codecs and attributes stay.

    Tasks read what their chunks need, with no copy in between: where the two grids cut across each
    other, chunks of the source are read more than once.
    """
    zarr.from_array(
        session.store,
        data=_open(session, source),
        name=target.strip("/"),
        chunks=tuple(chunks),
        shards=None,
        write_data=False,
    )
    return write(spark, plan(session, target), partial(_same, source))


def pyramid(
    spark: SparkSession,
    session: Session,
    path: str,
    *,
    levels: int,
    factors: Mapping[str, int],
    reduce: Reduce = np.mean,
) -> list[Staged]:
    """Create coarser and coarser copies of an array, named with `_1`, `_2` and so on.

    Args:
        spark: see `write`.
        session: a writable one.
        path: of the finest array.
        levels: how many copies.
        factors: by dimension name, how many elements become one. What is left over at the end of a
            dimension becomes one of fewer.
        reduce: what becomes of them, such as `numpy.nanmax`.
    """
    staged = []
    finer = path
    for level in range(1, levels + 1):
        coarser = f"{path}_{level}"
        array = _open(session, finer)
        names = ChunkGrid.of(array_node(session, "/" + finer.strip("/"))).names
        if unknown := set(factors) - set(names):
            raise InvalidInputError(f"{path} has no dimension {', '.join(sorted(unknown))}")
        steps = tuple(factors.get(str(name), 1) for name in names)
        shape = tuple(-(-n // step) for n, step in zip(array.shape, steps, strict=True))
        _create_like(session, array, coarser, shape)
        compute = partial(_coarsen, finer, steps, reduce)
        staged.append(write(spark, plan(session, coarser), compute))
        finer = coarser
    return staged


def _create_like(
    session: Session, array: zarr.Array[Any], path: str, shape: tuple[int, ...]
) -> None:
    copy = zarr.from_array(session.store, data=array, name=path.strip("/"), write_data=False)
    copy.resize(shape)


def _same(source: str, block: Block) -> NDArray[Any]:
    return np.asarray(block.open(source)[block.slices])


def _coarsen(finer: str, steps: tuple[int, ...], reduce: Reduce, block: Block) -> NDArray[Any]:
    array = block.open(finer)
    sides = zip(block.slices, steps, array.shape, strict=True)
    wide = tuple(
        slice(part.start * step, min(part.stop * step, length)) for part, step, length in sides
    )
    values = np.asarray(array[wide])
    result = np.empty(block.shape, block.dtype)
    # Whole groups at once, and what is left over at the end of each dimension by itself.
    whole = tuple(n // step for n, step in zip(values.shape, steps, strict=True))
    for corner in np.ndindex(*(2,) * len(steps)):
        target, source, groups = _corner(corner, whole, block.shape, values.shape, steps)
        if all(n > 0 for n, _ in groups):
            shape = [n for group in groups for n in group]
            axes = tuple(range(1, len(shape), 2))
            result[target] = reduce(values[source].reshape(shape), axis=axes)
    return result


def _corner(
    corner: tuple[int, ...],
    whole: tuple[int, ...],
    shape: tuple[int, ...],
    length: tuple[int, ...],
    steps: tuple[int, ...],
) -> tuple[tuple[slice, ...], tuple[slice, ...], list[tuple[int, int]]]:
    """Where the groups of one corner go, where they come from, and how many of which size."""
    target, source, groups = [], [], []
    for is_rest, full, count, size, step in zip(corner, whole, shape, length, steps, strict=True):
        if is_rest:
            target.append(slice(full, count))
            source.append(slice(full * step, size))
            groups.append((count - full, size - full * step))
        else:
            target.append(slice(0, full))
            source.append(slice(0, full * step))
            groups.append((full, step))
    return tuple(target), tuple(source), groups


def _open(session: Session, path: str) -> zarr.Array[Any]:
    return zarr.open_array(session.store, path=path.strip("/"), mode="r")
