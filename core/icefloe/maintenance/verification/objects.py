"""Checks of chunk objects: each is there, and long enough for every reference into it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icefloe.format.chunk_refs import RefKind
from icefloe.format.ids import ChunkId, as_keys
from icefloe.maintenance.verification.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from icefloe.format.chunk_refs import ChunkRefs
    from icefloe.format.ragged import Bytes
    from icefloe.maintenance.listing import IdPage

_BATCH = 2**18
_FIX = "restore the object from a copy, or write the chunk again"


class ChunkEnds:
    """Which chunk objects are needed, and how long each must be: 20 bytes for each."""

    def __init__(self) -> None:
        self._id: Bytes = np.zeros((0, ChunkId.SIZE), np.uint8)
        self._end: NDArray[np.uint64] = np.zeros(0, np.uint64)
        self._new: list[tuple[Bytes, NDArray[np.uint64]]] = []
        self._new_count = 0

    def add(self, refs: ChunkRefs) -> None:
        rows = refs.kind == RefKind.NATIVE
        self._new.append((refs.chunk_id[rows], refs.offset[rows] + refs.length[rows]))
        self._new_count += int(rows.sum())
        if self._new_count > max(_BATCH, len(self._id)):
            self._merge()

    def _merge(self) -> None:
        ids = np.concatenate([self._id, *(part[0] for part in self._new)])
        ends = np.concatenate([self._end, *(part[1] for part in self._new)])
        self._new, self._new_count = [], 0
        keys = as_keys(ids)
        order = np.argsort(keys, kind="stable")
        first = np.ones(len(keys), np.bool_)
        first[1:] = keys[order[1:]] != keys[order[:-1]]
        starts = np.flatnonzero(first)
        self._id = ids[order[starts]]
        self._end = np.maximum.reduceat(ends[order], starts) if len(starts) else ends

    def broken(self, objects: Iterable[IdPage]) -> dict[bytes, int | None]:
        """Objects that are missing (None) or shorter than needed (their size), by id."""
        self._merge()
        size = np.full(len(self._id), -1, np.int64)
        keys = as_keys(self._id)
        for page in objects:
            wanted = as_keys(page.id)
            place = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
            rows = np.flatnonzero(keys[place] == wanted) if len(keys) else np.zeros(0, np.int64)
            size[place[rows]] = [page.objects[row].size for row in rows.tolist()]
        # Ends that do not fit 63 bits cannot be reached by any size either.
        bad = np.flatnonzero((size < 0) | (size.astype(np.uint64) < self._end))
        return {
            self._id[row].tobytes(): None if size[row] < 0 else int(size[row])
            for row in bad.tolist()
        }


def check_refs(
    key: str, path: str, refs: ChunkRefs, broken: Mapping[bytes, int | None]
) -> Iterator[Finding]:
    """The references of one array that need more than its objects hold."""
    for row in np.flatnonzero(refs.kind == RefKind.NATIVE).tolist():
        raw = refs.chunk_id[row].tobytes()
        if raw not in broken:
            continue
        size, end = broken[raw], int(refs.offset[row]) + int(refs.length[row])
        if size is not None and end <= size:
            continue
        yield Finding(
            severity="error",
            kind="missing-chunk" if size is None else "short-chunk",
            file=f"chunks/{ChunkId(raw)}",
            array=path,
            chunk=tuple(refs.index[row].tolist()),
            message=f"it does not exist, and {key} needs it"
            if size is None
            else f"it has {size} bytes, and {key} needs {end}",
            what_to_do=_FIX,
        )
