"""The nodes of a snapshot: one as a value, many as columns."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.format.ids import ManifestId, NodeId
from icefloe.format.ragged import Bytes, Ints, Ragged, starts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class ManifestRefs:
    """Which manifests cover which part of an array's chunk grid.

    `extents` is (n, dimensions, 2): from inclusive, to exclusive. Those of one array never overlap.
    """

    object_id: Bytes
    extents: NDArray[np.uint32]

    @classmethod
    def of(cls, items: Sequence[tuple[ManifestId, Sequence[tuple[int, int]]]], rank: int) -> Self:
        ids = b"".join(manifest_id.raw for manifest_id, _ in items)
        extents = np.array([list(box) for _, box in items], np.uint32).reshape(len(items), rank, 2)
        return cls(np.frombuffer(ids, np.uint8).reshape(-1, ManifestId.SIZE), extents)

    @classmethod
    def none(cls, rank: int) -> Self:
        return cls.of([], rank)

    def __len__(self) -> int:
        return len(self.object_id)

    def covering(self, coords: Sequence[int]) -> Ints:
        """Rows whose extent holds the chunk; other writers' empty extents hold everything."""
        if self.extents.shape[1] != len(coords):
            return np.arange(len(self), dtype=np.int64)
        point = np.array(coords, np.uint64)
        low, high = self.extents[:, :, 0], self.extents[:, :, 1]
        return np.flatnonzero(((low <= point) & (point < high)).all(axis=1))

    def ids(self) -> list[ManifestId]:
        return [ManifestId(row.tobytes()) for row in self.object_id]

    def equals(self, other: ManifestRefs) -> bool:
        return np.array_equal(self.object_id, other.object_id) and np.array_equal(
            self.extents, other.extents
        )


@dataclass(frozen=True, slots=True)
class DimensionShape:
    """The extent of an array along one dimension, in elements and in chunks."""

    array_length: int
    num_chunks: int


@dataclass(frozen=True, slots=True, eq=False)
class ArrayData:
    """What a snapshot knows of an array beyond its zarr.json."""

    shape: tuple[DimensionShape, ...]
    dimension_names: tuple[str | None, ...] | None
    manifests: ManifestRefs

    def equals(self, other: ArrayData) -> bool:
        return (self.shape, self.dimension_names) == (
            other.shape,
            other.dimension_names,
        ) and self.manifests.equals(other.manifests)


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A group, or an array if `array` is there. `user_data` is zarr.json verbatim."""

    id: NodeId
    path: str
    user_data: bytes
    array: ArrayData | None = None
    extra: bytes | None = None

    def equals(self, other: Node) -> bool:
        mine = (self.id, self.path, self.user_data, self.extra)
        theirs = (other.id, other.path, other.user_data, other.extra)
        if mine != theirs or (self.array is None) != (other.array is None):
            return False
        return self.array is None or other.array is None or self.array.equals(other.array)


def item_rows(count: Ints, rows: Ints) -> Ints:
    """For lists laid end to end with these counts, where the items of the chosen lists are."""
    size = np.maximum(count, 0)
    chosen = size[rows]
    within = np.arange(int(chosen.sum()), dtype=np.int64) - np.repeat(starts(chosen), chosen)
    return np.repeat(starts(size)[rows], chosen) + within


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Nodes:
    """Nodes as columns, sorted by the raw bytes of their path.

    Lists lie end to end in columns of their own, each with a count for every node.
    """

    id: Bytes
    path: Ragged
    user_data: Ragged
    extra: Ragged
    rank: Ints
    """Dimensions; -1 for a group."""
    array_length: NDArray[np.uint64]
    num_chunks: NDArray[np.uint32]
    name_count: Ints
    """Dimension names; -1 where there are none."""
    dimension_name: Ragged
    manifest_count: Ints
    """Manifests; -1 for a group."""
    manifest_id: Bytes
    extents: Ragged
    """Pairs of uint32 for each dimension, one row for each manifest."""

    @classmethod
    def of(cls, nodes: Iterable[Node]) -> Self:
        rows = sorted(nodes, key=lambda node: node.path.encode())
        arrays = [node.array for node in rows]
        present = [array for array in arrays if array is not None]
        shapes = [dimension for array in present for dimension in array.shape]
        names = [array.dimension_names for array in present if array.dimension_names is not None]
        return cls(
            id=_id_column([node.id.raw for node in rows], NodeId.SIZE),
            path=Ragged.of_text(node.path for node in rows),
            user_data=Ragged.of(node.user_data for node in rows),
            extra=Ragged.of(node.extra for node in rows),
            rank=_counts(None if array is None else array.shape for array in arrays),
            array_length=np.array([shape.array_length for shape in shapes], np.uint64),
            num_chunks=np.array([shape.num_chunks for shape in shapes], np.uint32),
            name_count=_counts(
                None if array is None else array.dimension_names for array in arrays
            ),
            dimension_name=Ragged.of_text(name for group in names for name in group),
            manifest_count=_counts(None if array is None else array.manifests for array in arrays),
            manifest_id=np.concatenate(
                [np.zeros((0, ManifestId.SIZE), np.uint8)]
                + [array.manifests.object_id for array in present]
            ),
            extents=Ragged.concat([Ragged.fixed(array.manifests.extents) for array in present]),
        )

    @classmethod
    def concat(cls, parts: Sequence[Nodes]) -> Nodes:
        """All nodes of the parts, sorted.

        Raises:
            InvalidInputError: a path occurs twice.
        """
        columns: dict[str, Any] = {}
        for name in cls.__slots__:
            values = [getattr(part, name) for part in parts]
            ragged = isinstance(values[0], Ragged)
            columns[name] = Ragged.concat(values) if ragged else np.concatenate(values)
        return cls(**columns).sorted()

    def __len__(self) -> int:
        return len(self.rank)

    def take(self, rows: Ints) -> Nodes:
        dimensions = item_rows(self.rank, rows)
        names = item_rows(self.name_count, rows)
        manifests = item_rows(self.manifest_count, rows)
        return Nodes(
            id=self.id[rows],
            path=self.path.take(rows),
            user_data=self.user_data.take(rows),
            extra=self.extra.take(rows),
            rank=self.rank[rows],
            array_length=self.array_length[dimensions],
            num_chunks=self.num_chunks[dimensions],
            name_count=self.name_count[rows],
            dimension_name=self.dimension_name.take(names),
            manifest_count=self.manifest_count[rows],
            manifest_id=self.manifest_id[manifests],
            extents=self.extents.take(manifests),
        )

    def sorted(self) -> Nodes:
        """The nodes by the raw bytes of their path.

        Raises:
            InvalidInputError: a path occurs twice.
        """
        if self.path.is_ascending():
            return self
        paths = [path or b"" for path in self.path.tolist()]
        order = sorted(range(len(paths)), key=paths.__getitem__)
        for row, following in pairwise(order):
            if paths[row] == paths[following]:
                twice = paths[row].decode(errors="replace")
                raise InvalidInputError(f"the path {twice!r} occurs twice", kind="duplicate-node")
        return self.take(np.array(order, np.int64))

    def row(self, path: str) -> int | None:
        """The node at a path, by binary search."""
        wanted = path.encode()
        low = self._bisect(wanted)
        return low if low < len(self) and self.path[low] == wanted else None

    def below(self, path: str) -> range:
        """Rows of all descendants of a path, the path itself left out."""
        prefix = b"/" if path == "/" else path.encode() + b"/"
        # The byte after "/" is "0": byte order keeps a subtree together.
        low, high = self._bisect(prefix), self._bisect(prefix[:-1] + b"0")
        return range(low + (path == "/" and self.row("/") is not None), high)

    def _bisect(self, wanted: bytes) -> int:
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if (self.path[middle] or b"") < wanted:
                low = middle + 1
            else:
                high = middle
        return low

    def __getitem__(self, row: int) -> Node:
        return Node(
            NodeId(self.id[row].tobytes()),
            (self.path[row] or b"").decode(),
            self.user_data[row] or b"",
            self._array(row) if self.rank[row] >= 0 else None,
            self.extra[row],
        )

    def _array(self, row: int) -> ArrayData:
        chosen = np.array([row], np.int64)
        dimensions = item_rows(self.rank, chosen)
        names: tuple[str | None, ...] | None = None
        if self.name_count[row] >= 0:
            values = self.dimension_name.take(item_rows(self.name_count, chosen)).tolist()
            names = tuple(None if value is None else value.decode() for value in values)
        shape = zip(
            self.array_length[dimensions].tolist(),
            self.num_chunks[dimensions].tolist(),
            strict=True,
        )
        return ArrayData(
            tuple(DimensionShape(length, chunks) for length, chunks in shape),
            names,
            self.manifests(row),
        )

    def manifests(self, row: int) -> ManifestRefs:
        """The manifests of one array."""
        rows = item_rows(self.manifest_count, np.array([row], np.int64))
        extents = self.extents.take(rows)
        lengths = set(extents.length.tolist())
        # Other writers may leave extents empty; they never mix.
        rank = lengths.pop() // 8 if len(lengths) == 1 else max(int(self.rank[row]), 0)
        boxes = extents.values(np.dtype("<u4")).reshape(len(rows), rank, 2)
        return ManifestRefs(self.manifest_id[rows], boxes)

    def equals(self, other: Nodes) -> bool:
        for name in Nodes.__slots__:
            mine, theirs = getattr(self, name), getattr(other, name)
            same = mine.equals(theirs) if isinstance(mine, Ragged) else np.array_equal(mine, theirs)
            if not same:
                return False
        return True


def _counts(items: Iterable[Any]) -> Ints:
    return np.fromiter((-1 if item is None else len(item) for item in items), np.int64)


def _id_column(raw: list[bytes], size: int) -> Bytes:
    return np.frombuffer(b"".join(raw), np.uint8).reshape(-1, size)
