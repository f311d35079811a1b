"""Checks of chunk objects: each is there, and long enough for every reference into it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from icefloe.format.chunk_refs import RefKind
from icefloe.format.ids import ChunkId, as_keys
from icefloe.maintenance.verification.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
        self.add_columns(refs.chunk_id[rows], refs.offset[rows] + refs.length[rows])

    def add_columns(self, ids: Bytes, ends: NDArray[np.uint64]) -> None:
        self._new.append((ids, ends))
        self._new_count += len(ids)
        if self._new_count > max(_BATCH, len(self._id)):
            self._merge()

    def __len__(self) -> int:
        """At most so many objects: some may be counted twice."""
        return len(self._id) + self._new_count

    def columns(self) -> tuple[Bytes, NDArray[np.uint64]]:
        """Ids, sorted, and the end of each."""
        self._merge()
        return self._id, self._end

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

    def broken(self, objects: Iterable[IdPage]) -> BrokenObjects:
        """Objects that are missing or shorter than needed."""
        self._merge()
        size = np.full(len(self._id), BrokenObjects.MISSING, np.int64)
        keys = as_keys(self._id)
        for page in objects:
            wanted = as_keys(page.id)
            place = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
            rows = np.flatnonzero(keys[place] == wanted) if len(keys) else np.zeros(0, np.int64)
            size[place[rows]] = [page.objects[row].size for row in rows.tolist()]
        # Ends that do not fit 63 bits cannot be reached by any size either.
        bad = np.flatnonzero((size < 0) | (size.astype(np.uint64) < self._end))
        return BrokenObjects(self._id[bad], size[bad])


@dataclass(frozen=True, slots=True, eq=False)
class BrokenObjects:
    """Chunk objects that some reference needs more of than there is."""

    id: Bytes
    """Sorted."""
    size: NDArray[np.int64]
    """Bytes that are there, or MISSING."""

    MISSING: ClassVar[int] = -1
    INTACT: ClassVar[int] = 2**63 - 1

    def __len__(self) -> int:
        return len(self.id)

    def sizes(self, ids: Bytes) -> NDArray[np.int64]:
        """For each object its size, MISSING, or INTACT if it is none of these."""
        if not len(self.id):
            return np.full(len(ids), self.INTACT, np.int64)
        keys, wanted = as_keys(self.id), as_keys(ids)
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.where(keys[place] == wanted, self.size[place], self.INTACT)


def check_refs(key: str, path: str, refs: ChunkRefs, broken: BrokenObjects) -> Iterator[Finding]:
    """The references of one array that need more than its objects hold."""
    size = broken.sizes(refs.chunk_id)
    end = refs.offset + refs.length
    short = (size < 0) | (size.astype(np.uint64) < end)
    short &= (refs.kind == RefKind.NATIVE) & (size != BrokenObjects.INTACT)
    for row in np.flatnonzero(short).tolist():
        is_missing = size[row] == BrokenObjects.MISSING
        yield Finding(
            severity="error",
            kind="missing-chunk" if is_missing else "short-chunk",
            file=f"chunks/{ChunkId(refs.chunk_id[row].tobytes())}",
            array=path,
            chunk=tuple(refs.index[row].tolist()),
            message=f"it does not exist, and {key} needs it"
            if is_missing
            else f"it has {size[row]} bytes, and {key} needs {end[row]}",
            what_to_do=_FIX,
        )
