"""The second job of `virtualize`: what was staged goes to its place in the arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.chunk_edits import EditColumns
from icefloe.errors import InvalidInputError
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.spark.cf_packing import fill_values
from icefloe.spark.chunk_grid import inside
from icefloe.spark.hdf5_variable import values_of
from icefloe.spark.regions import write_region
from icefloe.spark.virtualizing_staging import staged_refs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from icefloe.assets import Assets
    from icefloe.session import Session
    from icefloe.spark.block import Block
    from icefloe.spark.chunk_grid import Box
    from icefloe.spark.planning import ArrayPlan, Cell
    from icefloe.spark.regions import WrittenRegion
    from icefloe.spark.source import Source
    from icefloe.spark.virtualizing_arrays import Target
    from icefloe.spark.virtualizing_staging import StagedFile

    type Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """The files of one variable: which they are, where each begins, and what was staged of them."""

    target: Target
    starts: Ints
    """In elements of the array, and where the last ends."""
    manifests: NDArray[np.uint8]

    def meeting(self, first: int, last: int) -> slice:
        """The files with elements from `first` up to `last`."""
        if self.target.joined.axis is None:
            return slice(0, 1)
        low = np.searchsorted(self.starts[1:], first, side="right")
        return slice(int(low), int(np.searchsorted(self.starts[:-1], last)))

    def staged(self, assets: Assets, rows: slice) -> list[ChunkRefs]:
        """What was staged of some of the files."""
        joined = self.target.joined
        numbers, places = joined.numbers[rows].tolist(), joined.places[rows].tolist()
        return staged_refs(assets, self.manifests[rows], numbers, places)


def parts_of(target: Target, staged: Sequence[StagedFile], what: str) -> Parts:
    ids = b"".join(getattr(staged[number], what) for number in target.joined.numbers.tolist())
    manifests = np.frombuffer(ids, np.uint8).reshape(len(target.joined.numbers), -1)
    return Parts(target, target.start + target.joined.edges, manifests)


def write_virtual_region(
    source: Source,
    plans: Mapping[str, ArrayPlan],
    parts: Mapping[str, Parts],
    item: tuple[str, Cell],
) -> WrittenRegion:
    path, cell = item
    session, plan, part = source.open(), plans[path], parts[path]
    box = plan.cell_box(cell)
    refs = _moved_refs(session, plan, part, box)
    edits = EditColumns.written(refs.take(inside(refs.index, box)))
    return write_region(session, path, cell, box, edits)


def _moved_refs(session: Session, plan: ArrayPlan, part: Parts, box: Box) -> ChunkRefs:
    """The references of the files that meet a box of chunks, where they are in the array."""
    joined, rank = part.target.joined, len(plan.sizes)
    axis = joined.axis
    rows = part.meeting(*plan.grid.elements(box)[axis or 0]) if rank else slice(0, 1)
    found = part.staged(session.context.assets, rows)
    filled = [(at, refs) for at, refs in enumerate(found, rows.start) if len(refs)]
    if axis is None or not filled:
        return filled[0][1] if filled else ChunkRefs.empty(rank)
    refs = ChunkRefs.concat([refs for _, refs in filled])
    first = part.starts[[at for at, _ in filled]] // joined.variable.chunks[axis]
    shift = np.repeat(first, [len(each) for _, each in filled]).astype(np.uint32)
    index = np.insert(refs.index, axis, 0, axis=1) if joined.is_new else refs.index.copy()
    index[:, axis] += shift
    return replace(refs, index=index)


@dataclass(frozen=True, slots=True)
class Loaded:
    """Gives the values of blocks from those that were staged."""

    source: Source
    parts: Mapping[str, Parts]

    def __call__(self, block: Block) -> NDArray[Any]:
        parts = self.parts[block.path]
        axis = parts.target.joined.axis
        if axis is None:
            return self.values(block.path, slice(0, 1))[0][block.slices]
        wanted = block.slices[axis]
        rows = parts.meeting(wanted.start, wanted.stop)
        pieces = []
        for start, values in zip(
            parts.starts[rows].tolist(), self.values(block.path, rows), strict=True
        ):
            sides = list(block.slices)
            sides[axis] = slice(max(wanted.start - start, 0), wanted.stop - start)
            pieces.append(values[tuple(sides)])
        return np.concatenate(pieces, axis=axis)

    def values(self, path: str, rows: slice) -> list[NDArray[Any]]:
        """All that some files have for an array."""
        parts = self.parts[path]
        variable, axis = parts.target.joined.variable, parts.target.joined.axis
        sizes = np.diff(parts.starts)[rows].tolist()
        found = []
        staged = parts.staged(self.source.open().context.assets, rows)
        dtypes = parts.target.joined.dtypes[rows]
        for refs, size, dtype in zip(staged, sizes, dtypes, strict=True):
            data = refs.inline[0] if refs.inline is not None else None
            shape = [size if at == axis else n for at, n in enumerate(variable.shape)]
            found.append(values_of(replace(variable, shape=tuple(shape), dtype=dtype), data or b""))
        return self._counted(path, rows, found)

    def _counted(self, path: str, rows: slice, values: list[NDArray[Any]]) -> list[NDArray[Any]]:
        """Values in the units that all files shall count in."""
        joined = self.parts[path].target.joined
        wanted = joined.recode_to
        if wanted is None:
            return values
        dtype = np.dtype(joined.variable.dtype)
        fills = fill_values(path, joined.attributes, dtype)
        found = []
        for units, each in zip(joined.units[rows], values, strict=True):
            counted = ~np.isin(each, fills) if fills else np.ones(each.shape, np.bool_)
            recoded = np.empty(each.shape, dtype)
            recoded[~counted] = each[~counted]
            try:
                recoded[counted] = wanted.recode(each[counted], units, dtype)
            except InvalidInputError as error:
                raise InvalidInputError(
                    f"{path}, which a file counts in {units.text!r}: {error}. Leave it out, with "
                    f"drop=[{joined.name!r}]",
                    kind=error.kind,
                ) from error
            found.append(recoded)
        return found
