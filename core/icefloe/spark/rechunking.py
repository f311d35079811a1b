"""An array with other chunks: directly where that is cheap, else by way of chunks in between."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

from icefloe.errors import AlreadyExistsError, InvalidInputError
from icefloe.spark.chunk_grid import ChunkGrid, blocks
from icefloe.spark.planning import array_node, plan
from icefloe.spark.source import Source
from icefloe.spark.writing import write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

    from icefloe.session import Session
    from icefloe.spark.block import Block
    from icefloe.spark.writing import Staged

    type Shape = tuple[int, ...]

MEMORY = 256 * 2**20
_TOLERATED = 3.0
"""How often values may be read: chunks in between cost about as much."""


def rechunk(
    spark: SparkSession,
    session: Session,
    source: str,
    target: str | None = None,
    *,
    chunks: Sequence[int],
    memory: int = MEMORY,
) -> Staged:
    """Give an array other chunks; type, codecs, attributes and dimension names stay.

    A task reads what its block needs of the source. Where the two grids cut across each other, so
    that every chunk would be read many times, values go by way of an array with chunks in between,
    which is gone before the session is committed: each value is read and written twice, and no
    more.

    Args:
        spark: see `write`.
        session: a writable one.
        source: the array to read.
        target: the array to create; None puts it in place of the source.
        chunks: the shape of the new ones.
        memory: bytes of values in one block, of which a task holds one at a time; at its peak a
            task takes about three times as much. At least one chunk is held, however large.

    Raises:
        InvalidInputError: the chunks have another number of dimensions.
        NotFoundError: there is no such source.
        AlreadyExistsError: there is something at `target`.
    """
    path, shape = "/" + source.strip("/"), tuple(chunks)
    old = _chunk_shape(session, path)
    array = zarr.open_array(session.store, path=path.strip("/"), mode="r")
    if len(shape) != array.ndim or min(shape, default=1) < 1:
        raise InvalidInputError(f"{shape} are no chunks of {path}, whose shape is {array.shape}")
    goal = path if target is None else "/" + target.strip("/")
    if target is not None and session.node(goal) is not None:
        raise AlreadyExistsError(f"there is a node at {goal}", kind="node-already-exists")
    # The source may be gone from the session soon; this snapshot keeps it.
    before = Source.of(session.context, session.fork().snapshot_id)
    between = chunks_between(array.shape, old, shape, array.dtype.itemsize, memory)
    if between is None:
        _create(session, array, goal, shape)
        return write(
            spark, plan(session, goal), _Copy(before, path), decode=False, block_bytes=memory
        )
    step = f"{goal}.rechunk-{uuid.uuid4().hex[:8]}"
    _create(session, array, step, between)
    write(spark, plan(session, step), _Copy(before, path), decode=False, block_bytes=memory)
    before = Source.of(session.context, session.fork().snapshot_id)
    session.delete_node(step)
    _create(session, array, goal, shape)
    return write(spark, plan(session, goal), _Copy(before, step), decode=False, block_bytes=memory)


@dataclass(frozen=True, slots=True)
class _Copy:
    source: Source
    path: str

    def __call__(self, block: Block) -> NDArray[Any]:
        store = self.source.open().store
        array = zarr.open_array(store, path=self.path.strip("/"), mode="r")
        return np.asarray(array[block.slices])


def _create(session: Session, array: zarr.Array[Any], path: str, chunks: Shape) -> None:
    zarr.from_array(
        session.store,
        data=array,
        name=path.strip("/"),
        chunks=chunks,
        shards=None,
        write_data=False,
        overwrite=True,
    )


def _chunk_shape(session: Session, path: str) -> Shape:
    """The shape of the largest chunk."""
    axes = ChunkGrid.of(array_node(session, path)).axes
    return tuple(
        axis.size or max((axis.chunk_size(at) for at in range(axis.count)), default=1)
        for axis in axes
    )


def chunks_between(
    shape: Shape, source: Shape, target: Shape, itemsize: int, memory: int
) -> Shape | None:
    """Chunks for an array in between; None if it is cheaper to go without.

    This is how the package rechunker does it: blocks of the source as large as memory allows are
    written in the pieces that they share with such blocks of the target.
    """
    limit = max(memory // max(itemsize, 1), 1)
    if 0 in shape or times_read(shape, source, target, limit) <= _TOLERATED:
        return None
    pairs = zip(_grown(shape, source, limit), _grown(shape, target, limit), strict=True)
    return tuple(min(pair) for pair in pairs)


def times_read(shape: Shape, source: Shape, target: Shape, limit: int) -> float:
    """How often a value is read if blocks of the target read the chunks that they need."""
    counts = [-(-length // size) for length, size in zip(shape, target, strict=True)]
    box = tuple((0, count) for count in counts)
    first = blocks(box, limit // max(prod(target), 1))[0]
    often = 1.0
    for (_, count), length, size, chunk in zip(first, shape, target, source, strict=True):
        starts = np.arange(0, length, count * size)
        stops = np.minimum(starts + count * size, length)
        read = np.minimum(-(-stops // chunk) * chunk, length) - starts // chunk * chunk
        often *= float(read.sum()) / length
    return often


def _grown(shape: Shape, chunks: Shape, limit: int) -> Shape:
    """Whole chunks, as many as fit, the last dimensions first."""
    sizes = [min(size, length) for size, length in zip(chunks, shape, strict=True)]
    for axis in reversed(range(len(shape))):
        room = limit // max(prod(sizes), 1)
        sizes[axis] = min(sizes[axis] * max(room, 1), shape[axis])
        if sizes[axis] < shape[axis]:
            break
    return tuple(sizes)
