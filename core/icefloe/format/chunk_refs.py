"""Chunk references: one as a value, many as columns."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.format.ids import ChunkId
from icefloe.format.ragged import Bytes, Ints, Ragged, Rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class RefKind(IntEnum):
    """Where a chunk's bytes are."""

    NATIVE = 0
    INLINE = 1
    VIRTUAL = 2


@dataclass(frozen=True, slots=True)
class NativeRef:
    """Bytes in an object of the repository."""

    chunk_id: ChunkId
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class InlineRef:
    """Bytes in the manifest itself."""

    data: bytes


@dataclass(frozen=True, slots=True)
class VirtualRef:
    """Bytes in somebody else's object; a checksum is an etag, or seconds since the epoch."""

    location: str
    offset: int
    length: int
    checksum_etag: str | None = None
    checksum_last_modified: int | None = None


type ChunkRef = NativeRef | InlineRef | VirtualRef


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ChunkRefs:
    """References of one array as columns of n rows.

    Columns of a kind that does not occur may be None; rows of another kind hold zeros or absent
    values there. Files want rows sorted by index and no index twice: see `sorted`.
    """

    index: NDArray[np.uint32]
    """(n, dimensions)"""
    kind: Bytes
    """RefKind of each row."""
    chunk_id: Bytes
    """(n, 12)"""
    offset: NDArray[np.uint64]
    length: NDArray[np.uint64]
    inline: Ragged | None = None
    location: Ragged | None = None
    checksum_etag: Ragged | None = None
    checksum_last_modified: NDArray[np.uint32] | None = None
    """Seconds since the epoch; 0 means none."""
    extra: Ragged | None = None

    @classmethod
    def native(
        cls,
        index: NDArray[np.uint32],
        chunk_id: Bytes,
        offset: NDArray[np.uint64],
        length: NDArray[np.uint64],
    ) -> Self:
        kind = np.full(len(index), RefKind.NATIVE, np.uint8)
        return cls(index=index, kind=kind, chunk_id=chunk_id, offset=offset, length=length)

    @classmethod
    def of_inline(cls, index: NDArray[np.uint32], data: Ragged) -> Self:
        return cls(**_blank(index, RefKind.INLINE), inline=data)

    @classmethod
    def virtual(
        cls,
        index: NDArray[np.uint32],
        location: Ragged,
        offset: NDArray[np.uint64],
        length: NDArray[np.uint64],
        *,
        checksum_etag: Ragged | None = None,
        checksum_last_modified: NDArray[np.uint32] | None = None,
    ) -> Self:
        blank = _blank(index, RefKind.VIRTUAL) | {"offset": offset, "length": length}
        return cls(
            **blank,
            location=location,
            checksum_etag=checksum_etag,
            checksum_last_modified=checksum_last_modified,
        )

    @classmethod
    def empty(cls, dimensions: int) -> Self:
        return cls(**_blank(np.zeros((0, dimensions), np.uint32), RefKind.NATIVE))

    @classmethod
    def of(cls, items: Sequence[tuple[Sequence[int], ChunkRef]], dimensions: int) -> Self:
        """Columns from single references, in the order given."""
        index = np.array([coords for coords, _ in items], np.uint32).reshape(len(items), dimensions)
        blank = _blank(index, RefKind.NATIVE)
        inline: list[bytes | None] = [None] * len(items)
        location: list[str | None] = [None] * len(items)
        etag: list[str | None] = [None] * len(items)
        modified = np.zeros(len(items), np.uint32)
        for row, (_, ref) in enumerate(items):
            match ref:
                case InlineRef(data=data):
                    blank["kind"][row] = RefKind.INLINE
                    inline[row] = data
                case NativeRef():
                    blank["chunk_id"][row] = np.frombuffer(ref.chunk_id.raw, np.uint8)
                case VirtualRef():
                    blank["kind"][row] = RefKind.VIRTUAL
                    location[row] = ref.location
                    etag[row] = ref.checksum_etag
                    modified[row] = ref.checksum_last_modified or 0
            if not isinstance(ref, InlineRef):
                blank["offset"][row], blank["length"][row] = ref.offset, ref.length
        return cls(
            **blank,
            inline=Ragged.of(inline),
            location=Ragged.of_text(location),
            checksum_etag=Ragged.of_text(etag),
            checksum_last_modified=modified,
        )

    @classmethod
    def concat(cls, parts: Sequence[ChunkRefs]) -> Self:
        """All rows, in the order given; the parts must agree on the number of dimensions."""
        if not parts:
            return cls.empty(0)
        columns: dict[str, Any] = {}
        for field in fields(cls):
            values = [getattr(part, field.name) for part in parts]
            if all(value is None for value in values):
                columns[field.name] = None
            elif field.name == "checksum_last_modified":
                columns[field.name] = np.concatenate(
                    [
                        np.zeros(len(part), np.uint32) if value is None else value
                        for part, value in zip(parts, values, strict=True)
                    ]
                )
            elif any(isinstance(value, Ragged) for value in values):
                columns[field.name] = Ragged.concat(
                    [
                        Ragged.absent(len(part)) if value is None else value
                        for part, value in zip(parts, values, strict=True)
                    ]
                )
            else:
                columns[field.name] = np.concatenate(values)
        return cls(**columns)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def dimensions(self) -> int:
        return int(self.index.shape[1])

    def take(self, rows: Rows) -> ChunkRefs:
        columns: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Ragged):
                value = value.take(rows)
            elif value is not None:
                value = value[rows]
            columns[field.name] = value
        return ChunkRefs(**columns)

    def is_sorted(self) -> bool:
        """Whether rows ascend strictly by index, as files need them."""
        return is_ascending(self.index)

    def sorted(self) -> ChunkRefs:
        """The rows by ascending index.

        Raises:
            InvalidInputError: an index occurs twice.
        """
        if self.is_sorted():
            return self
        refs = self.take(sort_order(self.index))
        ascends = _ascends(refs.index)
        if not bool(ascends.all()):
            row = int(np.flatnonzero(~ascends)[0])
            coords = tuple(refs.index[row].tolist())
            raise InvalidInputError(f"chunk {coords} occurs twice", kind="duplicate-chunk")
        return refs

    def row(self, coords: Sequence[int]) -> int | None:
        """The row of a chunk, by binary search; the rows must be sorted."""
        low, high = 0, len(self)
        wanted = tuple(coords)
        while low < high:
            middle = (low + high) // 2
            if tuple(self.index[middle].tolist()) < wanted:
                low = middle + 1
            else:
                high = middle
        if low < len(self) and tuple(self.index[low].tolist()) == wanted:
            return low
        return None

    def __getitem__(self, row: int) -> ChunkRef:
        kind = int(self.kind[row])
        if kind == RefKind.INLINE:
            data = self.inline[row] if self.inline is not None else None
            return InlineRef(data or b"")
        offset, length = int(self.offset[row]), int(self.length[row])
        if kind == RefKind.NATIVE:
            return NativeRef(ChunkId(self.chunk_id[row].tobytes()), offset, length)
        location = self.location[row] if self.location is not None else None
        etag = self.checksum_etag[row] if self.checksum_etag is not None else None
        modified = self.checksum_last_modified
        return VirtualRef(
            (location or b"").decode(),
            offset,
            length,
            None if etag is None else etag.decode(),
            None if modified is None else int(modified[row]) or None,
        )

    def equals(self, other: ChunkRefs) -> bool:
        """Whether both hold the same rows; a missing column equals one without values.

        Files do not say how many dimensions no rows have, so all empty ones are equal.
        """
        if not len(self) and not len(other):
            return True
        if self.index.shape != other.index.shape:
            return False
        for field in fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            if not _same(mine, theirs, len(self)):
                return False
        return True


def sort_order(index: NDArray[np.uint32]) -> Ints:
    """The rows of (n, dimensions) coordinates in lexicographic order; stable."""
    if index.shape[1] == 0:
        return np.arange(len(index), dtype=np.int64)
    return np.lexsort(index.T[::-1])


def is_ascending(index: NDArray[np.uint32]) -> bool:
    """Whether rows of (n, dimensions) coordinates ascend strictly."""
    return len(index) < 2 or bool(_ascends(index).all())


def _ascends(index: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """For each row but the last, whether it is less than the next."""
    before, after = index[:-1], index[1:]
    less = np.zeros(len(before), np.bool_)
    equal = np.ones(len(before), np.bool_)
    for dimension in range(index.shape[1]):
        a, b = before[:, dimension], after[:, dimension]
        less |= equal & (a < b)
        equal &= a == b
    return less


def _blank(index: NDArray[np.uint32], kind: RefKind) -> dict[str, Any]:
    count = len(index)
    return {
        "index": index,
        "kind": np.full(count, kind, np.uint8),
        "chunk_id": np.zeros((count, ChunkId.SIZE), np.uint8),
        "offset": np.zeros(count, np.uint64),
        "length": np.zeros(count, np.uint64),
    }


def _same(mine: Any, theirs: Any, count: int) -> bool:
    if isinstance(mine, Ragged) or isinstance(theirs, Ragged):
        return (mine or Ragged.absent(count)).equals(theirs or Ragged.absent(count))
    if mine is None or theirs is None:
        return not any(value is not None and bool(value.any()) for value in (mine, theirs))
    return np.array_equal(mine, theirs)
