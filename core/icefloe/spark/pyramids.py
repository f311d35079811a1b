"""Coarser and coarser copies of an array."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

from icefloe.errors import InvalidInputError
from icefloe.format import paths
from icefloe.spark.cf_packing import CfPacking
from icefloe.spark.chunk_grid import ChunkGrid
from icefloe.spark.planning import array_node, plan
from icefloe.spark.writing import Staged, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

    from icefloe.session import Session
    from icefloe.spark.block import Block

    type Reduce = Callable[..., Any]
    """Like `numpy.mean`: takes an array and the axes to reduce, as `axis`."""


def pyramid(
    spark: SparkSession,
    session: Session,
    path: str,
    *,
    levels: int,
    factors: Mapping[str, int],
    reduce: Reduce = np.mean,
) -> Staged:
    """Create coarser and coarser copies of an array, named with `_1`, `_2` and so on.

    Each is made of the one before, with its type (whole numbers are rounded), chunks, codecs and
    attributes. Packed values are reduced as what they mean, with NaN where there is none:
    `numpy.nanmean` leaves it out. The group of the array gets an attribute `multiscales`, which
    lists them.

    Args:
        spark: see `write`.
        session: a writable one.
        path: of the finest array.
        levels: how many copies.
        factors: by dimension name, how many elements become one. What is left over at the end of a
            dimension becomes one of fewer, which counts as much as the others in the next level.
        reduce: what becomes of them, such as `numpy.nanmax`.

    Raises:
        InvalidInputError: there is no such dimension, or a factor is below 1.
    """
    finest = "/" + path.strip("/")
    names = ChunkGrid.of(array_node(session, finest)).names
    if unknown := set(factors) - set(names):
        raise InvalidInputError(f"{path} has no dimension {', '.join(sorted(unknown))}")
    if levels < 1 or min(factors.values(), default=1) < 1:
        raise InvalidInputError(f"{levels} levels by {dict(factors)}: all must be at least 1")
    steps = tuple(factors.get(str(name), 1) for name in names)
    chain = [finest, *(f"{finest}_{level}" for level in range(1, levels + 1))]
    staged = [
        _coarser(spark, session, finer, coarser, steps, reduce)
        for finer, coarser in pairwise(chain)
    ]
    _describe(session, chain, names, steps, reduce)
    return Staged(session, staged[0].base, tuple(each for one in staged for each in one.arrays))


def _coarser(
    spark: SparkSession,
    session: Session,
    finer: str,
    coarser: str,
    steps: tuple[int, ...],
    reduce: Reduce,
) -> Staged:
    array = zarr.open_array(session.store, path=finer.strip("/"), mode="r")
    shape = tuple(-(-n // step) for n, step in zip(array.shape, steps, strict=True))
    copy = zarr.from_array(session.store, data=array, name=coarser.strip("/"), write_data=False)
    copy.resize(shape)
    compute = partial(_coarsen, finer, steps, reduce)
    return write(spark, plan(session, coarser), compute, decode=False)


def _describe(
    session: Session,
    chain: Sequence[str],
    names: Sequence[str | None],
    steps: Sequence[int],
    reduce: Reduce,
) -> None:
    """List the arrays in their group, as OME-Zarr does."""
    group = zarr.open_group(session.store, path=paths.parent(chain[0]).strip("/"), mode="a")
    name = paths.name(chain[0])
    datasets = [
        {
            "path": paths.name(each),
            "coordinateTransformations": [
                {"type": "scale", "scale": [float(step**level) for step in steps]}
            ],
        }
        for level, each in enumerate(chain)
    ]
    entry = {
        "name": name,
        "axes": [{"name": each} for each in names],
        "datasets": datasets,
        "type": getattr(reduce, "__name__", "reduce"),
    }
    known: Any = group.attrs.get("multiscales", [])
    group.attrs["multiscales"] = [each for each in known if each.get("name") != name] + [entry]


def _coarsen(finer: str, steps: tuple[int, ...], reduce: Reduce, block: Block) -> NDArray[Any]:
    array = block.open(finer)
    sides = zip(block.slices, steps, array.shape, strict=True)
    wide = tuple(
        slice(part.start * step, min(part.stop * step, length)) for part, step, length in sides
    )
    packing = CfPacking.of(array)
    # What stands for no value must not count as one.
    values = packing.decode_to_nan(np.asarray(array[wide]))
    result = np.empty(block.shape, values.dtype if packing.attributes else block.dtype)
    for target, source, groups in _corners(block.shape, values.shape, steps):
        shape = [n for group in groups for n in group]
        axes = tuple(range(1, len(shape), 2))
        reduced = np.asarray(reduce(values[source].reshape(shape), axis=axes))
        is_whole = block.dtype.kind in "iu" and reduced.dtype.kind == "f" and not packing.is_scaled
        result[target] = np.rint(reduced) if is_whole else reduced
    return packing.encode(result) if packing.attributes else result


def _corners(
    shape: Sequence[int], length: Sequence[int], steps: Sequence[int]
) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...], list[tuple[int, int]]]]:
    """Whole groups at once, and what is left over at the end of each dimension by itself.

    Where the groups of each part go, where they come from, and how many of which size they are.
    """
    whole = [size // step for size, step in zip(length, steps, strict=True)]
    for corner in np.ndindex(*(2,) * len(steps)):
        target, source, groups = [], [], []
        for is_rest, full, count, size, step in zip(
            corner, whole, shape, length, steps, strict=True
        ):
            if is_rest:
                target.append(slice(full, count))
                source.append(slice(full * step, size))
                groups.append((count - full, size - full * step))
            else:
                target.append(slice(0, full))
                source.append(slice(0, full * step))
                groups.append((full, step))
        if all(count > 0 for count, _ in groups):
            yield tuple(target), tuple(source), groups
