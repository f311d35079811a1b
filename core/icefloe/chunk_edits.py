"""Chunk references that a session wrote or deleted in one array."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.format.chunk_refs import ChunkRef, ChunkRefs, sort_order
from icefloe.format.ids import as_keys

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

type Coordinates = tuple[int, ...]
type Index = NDArray[np.uint32]
type Mask = NDArray[np.bool_]

_RECENT = 8192
"""Edits kept one by one before they become columns."""
_REVISIONS = count(1)


@dataclass(frozen=True, slots=True, eq=False)
class EditColumns:
    """Edits sorted by index, each index once; rows in `deleted` have no reference."""

    refs: ChunkRefs
    deleted: Mask

    @classmethod
    def of(cls, edits: Mapping[Coordinates, ChunkRef | None], rank: int) -> EditColumns:
        written = [(at, ref) for at, ref in edits.items() if ref is not None]
        gone = [at for at, ref in edits.items() if ref is None]
        return cls.written(ChunkRefs.of(written, rank)).then(
            cls.deletions(np.array(gone, np.uint32).reshape(len(gone), rank))
        )

    @classmethod
    def written(cls, refs: ChunkRefs) -> EditColumns:
        """All rows written; where an index occurs twice, the later row counts."""
        return _latest(refs, np.zeros(len(refs), np.bool_))

    @classmethod
    def deletions(cls, index: Index) -> EditColumns:
        count = len(index)
        refs = ChunkRefs.native(
            index,
            np.zeros((count, 12), np.uint8),
            np.zeros(count, np.uint64),
            np.zeros(count, np.uint64),
        )
        return _latest(refs, np.ones(count, np.bool_))

    def __len__(self) -> int:
        return len(self.deleted)

    @property
    def index(self) -> Index:
        return self.refs.index

    def then(self, later: EditColumns) -> EditColumns:
        """Both; where they meet, the later one counts."""
        if not len(later):
            return self
        if not len(self):
            return later
        return _latest(
            ChunkRefs.concat([self.refs, later.refs]),
            np.concatenate([self.deleted, later.deleted]),
        )

    def take(self, rows: Mask) -> EditColumns:
        return EditColumns(self.refs.take(rows), self.deleted[rows])

    def live(self) -> ChunkRefs:
        """The references written."""
        return self.refs.take(~self.deleted)

    def find(self, coords: Coordinates) -> tuple[bool, ChunkRef | None]:
        """Whether there is an edit of the chunk, and its reference unless it is deleted."""
        row = self.refs.row(coords)
        if row is None:
            return False, None
        return True, None if self.deleted[row] else self.refs[row]


class ChunkEdits:
    """Edits of one array; the latest of a chunk counts.

    Single edits gather in a dictionary and become sorted columns by the thousand, as a
    log-structured merge tree does: a look-up searches few runs, and an edit moves few times.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._recent: dict[Coordinates, ChunkRef | None] = {}
        self._runs: list[EditColumns] = []
        self.revision = next(_REVISIONS)
        """Names this state of these edits: no other ever has it, in this process."""

    def __bool__(self) -> bool:
        return bool(self._recent or self._runs)

    def copy(self) -> ChunkEdits:
        """These edits, in an object that others do not change."""
        copied = ChunkEdits(self._rank)
        copied._recent, copied._runs = dict(self._recent), list(self._runs)
        copied.revision = self.revision
        return copied

    def set(self, coords: Coordinates, ref: ChunkRef | None) -> None:
        """Write a reference, or delete it with None."""
        self._recent[coords] = ref
        self.revision = next(_REVISIONS)
        if len(self._recent) >= _RECENT:
            self._settle()

    def extend(self, edits: EditColumns) -> None:
        """Many edits, later than all so far."""
        self._settle()
        self._push(edits)
        self.revision = next(_REVISIONS)

    def find(self, coords: Coordinates) -> tuple[bool, ChunkRef | None]:
        """Whether there is an edit of the chunk, and its reference unless it is deleted."""
        if coords in self._recent:
            return True, self._recent[coords]
        for run in reversed(self._runs):
            found, ref = run.find(coords)
            if found:
                return True, ref
        return False, None

    def columns(self) -> EditColumns:
        """All edits."""
        self._settle()
        while len(self._runs) > 1:
            self._join_last()
        return self._runs[0] if self._runs else EditColumns.of({}, self._rank)

    def replace(self, edits: EditColumns) -> None:
        """These instead of all edits so far."""
        self._recent, self._runs = {}, []
        self.extend(edits)

    def clip(self, limits: Index) -> None:
        """Make deletions of the edits that lie outside the grid.

        Deleted, not forgotten: the array may grow again, over chunks of the base snapshot.
        """
        edits = self.columns()
        outside = (edits.index >= limits).any(axis=1)
        if bool(outside.any()):
            self.replace(EditColumns(edits.refs, edits.deleted | outside))

    def _settle(self) -> None:
        if self._recent:
            recent, self._recent = self._recent, {}
            self._push(EditColumns.of(recent, self._rank))

    def _push(self, run: EditColumns) -> None:
        if not len(run):
            return
        self._runs.append(run)
        while len(self._runs) > 1 and 2 * len(self._runs[-1]) >= len(self._runs[-2]):
            self._join_last()

    def _join_last(self) -> None:
        later = self._runs.pop()
        self._runs[-1] = self._runs[-1].then(later)


def _latest(refs: ChunkRefs, deleted: Mask) -> EditColumns:
    """Rows by index, the last of equal ones."""
    order = sort_order(refs.index)
    index = refs.index[order]
    last = np.ones(len(order), np.bool_)
    last[:-1] = (index[1:] != index[:-1]).any(axis=1)
    rows = order[last]
    return EditColumns(refs.take(rows), deleted[rows])


def rows_in(index: NDArray[np.integer[Any]], wanted: NDArray[np.integer[Any]]) -> Mask:
    """Which rows of `index` occur among `wanted`; both are (n, dimensions) and below 2**32."""
    if index.shape[1] == 0 or not len(wanted):
        return np.full(len(index), len(wanted) > 0)
    return np.isin(_keys(index), _keys(wanted))


def sort_rows(parts: Sequence[Index]) -> tuple[Index, NDArray[np.int64]]:
    """All rows in order, equal ones in the order of the parts; and the part that each is from."""
    rows = np.concatenate(parts)
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    order = sort_order(rows)
    return rows[order], owner[order]


def common_rows(first: Index, second: Index) -> Index:
    """The rows that both have."""
    return first[rows_in(first, second)]


def _keys(index: NDArray[np.integer[Any]]) -> NDArray[np.bytes_]:
    # Big-endian, so that byte order is the order of the coordinates.
    return as_keys(np.ascontiguousarray(index.astype(">u4")).view(np.uint8))
