"""Chunks that change places within their array: edits that move references, never bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icefloe.chunk_edits import EditColumns, rows_in
from icefloe.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from icefloe.format.chunk_refs import ChunkRefs

type Place = Callable[[Iterable[int]], Iterable[int] | None]


def shift(refs: ChunkRefs, limits: NDArray[np.uint32], offset: Sequence[int]) -> EditColumns:
    """All chunks moved by `offset` chunks; what leaves the grid is dropped.

    Raises:
        InvalidInputError: `offset` has not one number for each dimension.
    """
    if len(offset) != len(limits):
        raise InvalidInputError(
            f"an offset of {len(offset)} numbers does not fit {len(limits)} dimensions",
            kind="invalid-shift",
        )
    moved = refs.index.astype(np.int64) + np.array(offset, np.int64)
    inside = ((moved >= 0) & (moved < limits)).all(axis=1)
    return _replaced(refs, moved[inside].astype(np.uint32), np.flatnonzero(inside), refs.index)


def reindex(
    refs: ChunkRefs, limits: NDArray[np.uint32], forward: Place, backward: Place | None
) -> EditColumns:
    """Each chunk moved to where `forward` says; None leaves it.

    Args:
        refs: the chunks that exist.
        limits: chunks along each dimension.
        forward: from a chunk's coordinates to its new ones.
        backward: the inverse. Where it is given, a place whose chunk did not come from anywhere is
            emptied; without it, a place that a chunk left keeps that chunk.

    Raises:
        InvalidInputError: `forward` leads out of the grid, or two chunks to one place.
    """
    places = [(row, forward(at)) for row, at in enumerate(refs.index.tolist())]
    moves = [(row, _inside(place, limits)) for row, place in places if place is not None]
    targets = np.array([place for _, place in moves], np.uint32).reshape(len(moves), len(limits))
    if len({place for _, place in moves}) < len(moves):
        raise InvalidInputError("forward leads two chunks to one place", kind="invalid-reindex")
    rows = np.array([row for row, _ in moves], np.int64)
    emptied = refs.index[:0] if backward is None else _without_origin(refs, backward)
    return _replaced(refs, targets, rows, emptied)


def _replaced(
    refs: ChunkRefs,
    targets: NDArray[np.uint32],
    rows: NDArray[np.int64],
    emptied: NDArray[np.uint32],
) -> EditColumns:
    """The chosen chunks at their targets; `emptied` places are deleted unless they are targets."""
    columns = {name: getattr(refs.take(rows), name) for name in type(refs).__slots__}
    moved = type(refs)(**columns | {"index": targets})
    return EditColumns.deletions(emptied).then(EditColumns.written(moved))


def _without_origin(refs: ChunkRefs, backward: Place) -> NDArray[np.uint32]:
    """Places of chunks for which `backward` names no chunk that exists."""
    origins = [backward(at) for at in refs.index.tolist()]
    rank = refs.dimensions
    wanted = np.array([list(at) if at is not None else [0] * rank for at in origins], np.int64)
    wanted = wanted.reshape(len(origins), rank)
    named = np.array([at is not None for at in origins], np.bool_)
    named &= ((wanted >= 0) & (wanted < 2**32)).all(axis=1)
    exists = named & rows_in(np.where(named[:, None], wanted, 0).astype(np.uint32), refs.index)
    return refs.index[~exists]


def _inside(place: Iterable[int], limits: NDArray[np.uint32]) -> tuple[int, ...]:
    found = tuple(place)
    if len(found) != len(limits) or any(
        not 0 <= at < limit for at, limit in zip(found, limits.tolist(), strict=True)
    ):
        raise InvalidInputError(
            f"forward leads to {found}, outside the grid {tuple(limits.tolist())}",
            kind="invalid-reindex",
        )
    return found
