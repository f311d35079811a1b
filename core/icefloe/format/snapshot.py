"""Snapshots: all nodes of one version of a repository, and the manifests they need."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.format import header, wire
from icefloe.format.ids import ManifestId, SnapshotId, as_keys
from icefloe.format.metadata import Json, decode_items, encode_values, item_lists
from icefloe.format.nodes import Nodes
from icefloe.format.ragged import Bytes, Ints, Ragged
from icefloe.format.reading import Buffer, Tables, ids_ascend
from icefloe.format.writing import (
    Column,
    Lists,
    Structs,
    TableRows,
    Union,
    check_rewritable,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

ARRAY, GROUP = (wire.NODE_DATA.index(name) + 1 for name in ("Array", "Group"))


@dataclass(frozen=True, slots=True, eq=False)
class ManifestFiles:
    """Every manifest file that a snapshot needs, by id. `size_bytes` counts the whole file."""

    id: Bytes
    size_bytes: NDArray[np.uint64]
    num_chunk_refs: NDArray[np.uint32]
    extra: Ragged

    @classmethod
    def of(cls, items: Iterable[tuple[ManifestId, int, int]]) -> Self:
        """From (id, bytes of the file, number of references)."""
        rows = sorted(items, key=lambda item: item[0].raw)
        ids = np.frombuffer(b"".join(row[0].raw for row in rows), np.uint8)
        return cls(
            ids.reshape(-1, ManifestId.SIZE),
            np.array([row[1] for row in rows], np.uint64),
            np.array([row[2] for row in rows], np.uint32),
            Ragged.absent(len(rows)),
        )

    def __len__(self) -> int:
        return len(self.id)

    def row(self, manifest_id: ManifestId) -> int | None:
        keys = as_keys(self.id)
        wanted = np.frombuffer(manifest_id.raw, keys.dtype)
        row = int(np.searchsorted(keys, wanted)[0])
        return row if row < len(self) and self.id[row].tobytes() == manifest_id.raw else None

    def take(self, rows: Ints) -> ManifestFiles:
        return ManifestFiles(
            self.id[rows], self.size_bytes[rows], self.num_chunk_refs[rows], self.extra.take(rows)
        )

    def equals(self, other: ManifestFiles) -> bool:
        return (
            np.array_equal(self.id, other.id)
            and np.array_equal(self.size_bytes, other.size_bytes)
            and np.array_equal(self.num_chunk_refs, other.num_chunk_refs)
            and self.extra.equals(other.extra)
        )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Snapshot:
    """A snapshot file. `parent_id` is there in files of spec version 1 only."""

    id: SnapshotId
    nodes: Nodes
    manifest_files: ManifestFiles
    flushed_at: int
    """Microseconds since the epoch."""
    message: str
    metadata: Mapping[str, Json] = field(default_factory=dict)
    parent_id: SnapshotId | None = None
    extra: bytes | None = None
    spec_version: int = 2
    """Of the file this was read from; files are always written in version 2."""
    unknown: frozenset[str] = frozenset()

    def equals(self, other: Snapshot) -> bool:
        """Whether both describe the same snapshot, whatever the version of the file."""
        mine = (self.id, self.flushed_at, self.message, dict(self.metadata), self.extra)
        theirs = (other.id, other.flushed_at, other.message, dict(other.metadata), other.extra)
        return (
            mine == theirs
            and self.nodes.equals(other.nodes)
            and self.manifest_files.equals(other.manifest_files)
        )


def encode(snapshot: Snapshot, *, level: int = 3) -> bytes:
    """The file's bytes, in spec version 2.

    Raises:
        InvalidInputError: the manifests of the nodes are not those of `manifest_files`.
    """
    check_rewritable(snapshot.unknown, f"snapshot {snapshot.id}")
    _check_manifests(snapshot)
    names, values = encode_values(snapshot.metadata)
    files = snapshot.manifest_files
    one = np.ones(1, np.int64)
    columns: dict[str, Column] = {
        "id": Structs(np.frombuffer(snapshot.id.raw, np.uint8).reshape(1, -1)),
        "nodes": Lists(one * len(snapshot.nodes), _node_rows(snapshot.nodes)),
        "flushed_at": np.array([snapshot.flushed_at], np.uint64),
        "message": Ragged.of_text([snapshot.message]),
        "metadata": item_lists([len(names)], names, values),
        # The official reader insists on the empty list of version 1.
        "manifest_files": Ragged.of([b""]),
        "manifest_files_v2": Lists(
            one * len(files),
            TableRows(
                wire.MANIFEST_FILE_INFO_V2,
                len(files),
                {
                    "id": Structs(files.id),
                    "size_bytes": files.size_bytes,
                    "num_chunk_refs": files.num_chunk_refs,
                    "extra": files.extra,
                },
            ),
        ),
        "extra": Ragged.of([snapshot.extra]),
    }
    payload = write(TableRows(wire.SNAPSHOT, 1, columns), wire.FILE_IDENTIFIER)
    return header.pack(payload, header.FileType.SNAPSHOT, level=level)


def decode(data: bytes | memoryview, *, name: str = "snapshot") -> Snapshot:
    """Read a snapshot file of spec version 1 or 2.

    Raises:
        FormatError: naming `name` and what is wrong.
    """
    head, payload = header.unpack(data, header.FileType.SNAPSHOT, name=name)
    buffer = Buffer(payload, name)
    root = buffer.root(wire.SNAPSHOT)
    _, nodes = root.tables("nodes")
    _, metadata = root.tables("metadata")
    parent = root.struct("parent_id")[0].tobytes() if root.has("parent_id")[0] else None
    return Snapshot(
        id=SnapshotId(root.struct("id")[0].tobytes()),
        nodes=_read_nodes(nodes),
        manifest_files=_read_manifest_files(root),
        flushed_at=int(root.scalar("flushed_at")[0]),
        message=root.text("message").texts()[0],
        metadata=decode_items(metadata, spec_version=head.spec_version),
        parent_id=None if parent is None else SnapshotId(parent),
        extra=root.vector("extra")[0],
        spec_version=head.spec_version,
        unknown=frozenset(buffer.unknown),
    )


def _check_manifests(snapshot: Snapshot) -> None:
    used = np.unique(as_keys(snapshot.nodes.manifest_id))
    listed = as_keys(snapshot.manifest_files.id)
    if not np.array_equal(used, listed):
        raise InvalidInputError(
            f"snapshot {snapshot.id}: its nodes use {len(used)} manifests, but it lists "
            f"{len(listed)} others: both must be the same set",
            kind="manifest-list-mismatch",
        )


def _node_rows(nodes: Nodes) -> TableRows:
    is_array = nodes.rank >= 0
    rank, name_count = nodes.rank[is_array], nodes.name_count[is_array]
    arrays = TableRows(
        wire.ARRAY_NODE_DATA,
        len(rank),
        {
            # The official reader insists on the empty list of version 1.
            "shape": Ragged(
                np.zeros(0, np.uint8), np.zeros(len(rank), np.int64), np.zeros(len(rank), np.int64)
            ),
            "dimension_names": Lists(
                name_count,
                TableRows(
                    wire.DIMENSION_NAME, len(nodes.dimension_name), {"name": nodes.dimension_name}
                ),
            ),
            "manifests": Lists(
                nodes.manifest_count[is_array],
                TableRows(
                    wire.MANIFEST_REF,
                    len(nodes.manifest_id),
                    {"object_id": Structs(nodes.manifest_id), "extents": nodes.extents},
                ),
            ),
            "shape_v2": Lists(
                rank,
                TableRows(
                    wire.DIMENSION_SHAPE_V2,
                    len(nodes.array_length),
                    {"array_length": nodes.array_length, "num_chunks": nodes.num_chunks},
                ),
            ),
        },
    )
    groups = TableRows(wire.GROUP_NODE_DATA, len(nodes) - len(rank), {})
    return TableRows(
        wire.NODE_SNAPSHOT,
        len(nodes),
        {
            "id": Structs(nodes.id),
            "path": nodes.path,
            "user_data": nodes.user_data,
            "node_data": Union(
                np.where(is_array, ARRAY, GROUP).astype(np.uint8), {ARRAY: arrays, GROUP: groups}
            ),
            "extra": nodes.extra,
        },
    )


def _read_nodes(nodes: Tables) -> Nodes:
    tags, members = nodes.union("node_data")
    if bool(((tags != ARRAY) & (tags != GROUP)).any()):
        raise nodes.buffer.fail("a node is neither an array nor a group")
    empty = Tables(nodes.buffer, wire.ARRAY_NODE_DATA, np.zeros(0, np.int64))
    rows, arrays = members.get(ARRAY, (np.zeros(0, np.int64), empty))
    rank, array_length, num_chunks = _read_shapes(arrays)
    name_count, names = arrays.tables("dimension_names")
    manifest_count, manifests = arrays.tables("manifests")
    extents = manifests.vector("extents")
    if not _extents_fit(rank, manifest_count, extents):
        raise nodes.buffer.fail("the extents of a manifest do not fit the dimensions of its array")
    columns = Nodes(
        id=nodes.struct("id"),
        path=nodes.text("path"),
        user_data=nodes.vector("user_data"),
        extra=nodes.vector("extra"),
        rank=_spread(len(nodes), rows, rank),
        array_length=array_length,
        num_chunks=num_chunks,
        name_count=_spread(len(nodes), rows, name_count),
        dimension_name=names.text("name"),
        manifest_count=_spread(len(nodes), rows, manifest_count),
        manifest_id=manifests.struct("object_id"),
        extents=extents,
    )
    try:
        # The published spec orders paths by component, the reference by bytes: take both.
        return columns.sorted()
    except InvalidInputError as error:
        raise nodes.buffer.fail(str(error)) from None


def _extents_fit(rank: Ints, manifest_count: Ints, extents: Ragged) -> bool:
    """Whether all manifests of an array have a range for each dimension, or none has a range."""
    owner = np.repeat(np.arange(len(rank)), manifest_count)
    filled = extents.length > 0
    wanted = rank[owner] * wire.CHUNK_INDEX_RANGE.itemsize
    some = np.bincount(owner, filled, len(rank))
    return bool((extents.length == wanted)[filled].all()) and bool(
        ((some == 0) | (some == manifest_count)).all()
    )


def _spread(count: int, rows: Ints, values: Ints) -> Ints:
    column = np.full(count, -1, np.int64)
    column[rows] = values
    return column


def _read_shapes(arrays: Tables) -> tuple[Ints, NDArray[np.uint64], NDArray[np.uint32]]:
    """Dimensions, lengths and numbers of chunks, from whichever of the two shapes a node has."""
    count, shapes = arrays.tables("shape_v2")
    old = arrays.vector("shape")
    lengths, chunks = shapes.scalar("array_length"), shapes.scalar("num_chunks")
    is_old = count < 0
    if not bool(is_old.any()):
        return count, lengths, chunks
    values = old.values(wire.DIMENSION_SHAPE)
    rank = np.where(is_old, old.length // wire.DIMENSION_SHAPE.itemsize, count)
    new_rows = np.repeat(~is_old, rank)
    array_length = np.zeros(len(new_rows), np.uint64)
    num_chunks = np.zeros(len(new_rows), np.uint64)
    array_length[new_rows], num_chunks[new_rows] = lengths, chunks
    kept = np.repeat(is_old, old.length // wire.DIMENSION_SHAPE.itemsize)
    length, chunk = values["array_length"][kept], values["chunk_length"][kept]
    array_length[~new_rows] = length
    whole = np.maximum(chunk, 1)
    num_chunks[~new_rows] = np.where(chunk == 0, 0, length // whole + (length % whole > 0))
    return rank, array_length, np.minimum(num_chunks, 2**32 - 1).astype(np.uint32)


def _read_manifest_files(root: Tables) -> ManifestFiles:
    count, files = root.tables("manifest_files_v2")
    if int(count[0]) >= 0:
        return _sorted_files(
            ManifestFiles(
                files.struct("id"),
                files.scalar("size_bytes"),
                files.scalar("num_chunk_refs"),
                files.vector("extra"),
            )
        )
    old = root.vector("manifest_files").values(wire.MANIFEST_FILE_INFO)
    return _sorted_files(
        ManifestFiles(
            np.ascontiguousarray(old["id"]),
            old["size_bytes"].astype(np.uint64),
            old["num_chunk_refs"].astype(np.uint32),
            Ragged.absent(len(old)),
        )
    )


def _sorted_files(files: ManifestFiles) -> ManifestFiles:
    """By id: the reference once searched this list from end to end, so files may be unsorted."""
    if ids_ascend(files.id):
        return files
    return files.take(np.argsort(as_keys(files.id), kind="stable"))
