"""What a session has changed since its base snapshot, and what that makes of the snapshot."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.format.chunk_refs import ChunkRef, ChunkRefs
from icefloe.format.ids import ManifestId, NodeId, as_keys
from icefloe.format.manifest import ArrayManifest, Manifest
from icefloe.format.nodes import ArrayData, DimensionShape, ManifestRefs, Node, Nodes
from icefloe.format.snapshot import ManifestFiles
from icefloe.format.transaction_log import TransactionLog

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from icefloe.assets import Assets
    from icefloe.format.ids import SnapshotId
    from icefloe.format.snapshot import Snapshot

type Coordinates = tuple[int, ...]


def array_data(zarr_json: bytes, path: str) -> ArrayData | None:
    """What a snapshot keeps of an array's zarr.json; None for a group.

    Raises:
        InvalidInputError: the document is not the metadata of a zarr v3 node that we can store.
    """
    try:
        document = json.loads(zarr_json)
        if document["node_type"] == "group":
            return None
        if document["node_type"] != "array":
            raise ValueError(f"unknown node_type {document['node_type']!r}")
        shape = [_number(length, 2**64) for length in document["shape"]]
        chunks = [_number(count, 2**32) for count in _chunk_counts(document["chunk_grid"], shape)]
        names = _dimension_names(document.get("dimension_names"), len(shape))
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInputError(
            f"{path}/zarr.json is not the metadata of a zarr v3 node: {error!r}",
            kind="invalid-zarr-metadata",
        ) from error
    dimensions = tuple(DimensionShape(*pair) for pair in zip(shape, chunks, strict=True))
    return ArrayData(dimensions, names, ManifestRefs.none(len(shape)))


def _number(value: Any, limit: int) -> int:
    if not isinstance(value, int) or not 0 <= value < limit:
        raise ValueError(f"{value!r} is no number below {limit}")
    return value


def _dimension_names(names: Any, rank: int) -> tuple[str | None, ...] | None:
    if names is None:
        return None
    if len(names) != rank or not all(name is None or isinstance(name, str) for name in names):
        raise ValueError(f"{names!r} are not the names of {rank} dimensions")
    # Like the official client: an empty name is no name.
    return tuple(name or None for name in names)


def _chunk_counts(grid: Any, shape: Sequence[int]) -> list[int]:
    configuration = grid["configuration"]
    if grid["name"] == "regular":
        sizes = [int(size) for size in configuration["chunk_shape"]]
        if len(sizes) != len(shape):
            raise ValueError(f"{len(sizes)} chunk sizes for {len(shape)} dimensions")
        return [
            -(-length // size) if size else 0 for length, size in zip(shape, sizes, strict=True)
        ]
    if grid["name"] == "rectilinear":
        pairs = zip(shape, configuration["chunk_shapes"], strict=True)
        return [_rectilinear_count(length, sizes) for length, sizes in pairs]
    raise ValueError(f"unknown chunk grid {grid['name']!r}")


def _rectilinear_count(length: int, sizes: Any) -> int:
    if isinstance(sizes, int):
        return -(-length // sizes) if sizes else 0
    # A pair is a size and how often it repeats.
    return sum(item[1] if isinstance(item, list) else 1 for item in sizes)


@dataclass(slots=True)
class ChangeSet:
    """Changes by node path, and by node id for chunks; None stands for deleted."""

    nodes: dict[str, Node | None] = field(default_factory=dict)
    created: set[NodeId] = field(default_factory=set)
    deleted: dict[NodeId, bool] = field(default_factory=dict)
    """Nodes of the base snapshot that are gone, and whether they were arrays."""
    chunks: dict[NodeId, dict[Coordinates, ChunkRef | None]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.nodes or self.deleted or self.chunks)

    def set_node(self, node: Node, *, is_new: bool) -> None:
        if is_new:
            self.created.add(node.id)
        self.nodes[node.path] = node
        if node.array is not None and node.id in self.chunks:
            limits = [dimension.num_chunks for dimension in node.array.shape]
            # Deleted, not forgotten: the array may grow again, over chunks of the base snapshot.
            self.chunks[node.id] = {
                coords: ref
                if all(at < limit for at, limit in zip(coords, limits, strict=True))
                else None
                for coords, ref in self.chunks[node.id].items()
            }

    def delete_node(self, node: Node, *, in_base: bool) -> None:
        """Delete a node; `in_base` says whether the base snapshot has one at its path."""
        self.chunks.pop(node.id, None)
        if node.id in self.created:
            self.created.discard(node.id)
        else:
            self.deleted[node.id] = node.array is not None
        if in_base:
            self.nodes[node.path] = None
        else:
            self.nodes.pop(node.path, None)

    def set_chunk(self, node_id: NodeId, coords: Coordinates, ref: ChunkRef | None) -> None:
        self.chunks.setdefault(node_id, {})[coords] = ref

    def log(self, snapshot_id: SnapshotId) -> TransactionLog:
        """The transaction log of a commit of these changes."""
        live = [node for node in self.nodes.values() if node is not None]
        new = [node for node in live if node.id in self.created]
        updated = [node for node in live if node.id not in self.created]
        return TransactionLog(
            id=snapshot_id,
            new_groups=frozenset(node.id for node in new if node.array is None),
            new_arrays=frozenset(node.id for node in new if node.array is not None),
            deleted_groups=frozenset(key for key, is_array in self.deleted.items() if not is_array),
            deleted_arrays=frozenset(key for key, is_array in self.deleted.items() if is_array),
            updated_groups=frozenset(node.id for node in updated if node.array is None),
            updated_arrays=frozenset(node.id for node in updated if node.array is not None),
            updated_chunks={
                node_id: np.array(sorted(refs), np.uint32).reshape(len(refs), len(next(iter(refs))))
                for node_id, refs in self.chunks.items()
                if refs
            },
        )


def apply(changes: ChangeSet, base: Snapshot, assets: Assets) -> tuple[Nodes, ManifestFiles]:
    """The nodes after the changes, with the manifests of changed arrays written.

    Manifests of arrays without a change are kept as they are.
    """
    written: list[tuple[ManifestId, int, int]] = []
    paths = _touched_paths(changes, base)
    kept = np.ones(len(base.nodes), np.bool_)
    nodes: list[Node] = []
    for path in paths:
        row = base.nodes.row(path)
        if row is not None:
            kept[row] = False
        node = changes.nodes[path] if path in changes.nodes else base.nodes[row or 0]
        if node is not None:
            nodes.append(_with_manifest(node, changes, assets, written))
    unchanged = base.nodes.take(np.flatnonzero(kept))
    joined = Nodes.concat([unchanged, Nodes.of(nodes)])
    return joined, _manifest_files(joined, base.manifest_files, written)


def _touched_paths(changes: ChangeSet, base: Snapshot) -> list[str]:
    """Paths of nodes that were set or deleted, or whose chunks changed."""
    paths = dict.fromkeys(changes.nodes)
    known = {node.id for node in changes.nodes.values() if node is not None}
    others = [node_id.raw for node_id in changes.chunks if node_id not in known]
    if others:
        wanted = as_keys(np.frombuffer(b"".join(others), np.uint8).reshape(-1, NodeId.SIZE))
        rows = np.flatnonzero(np.isin(as_keys(base.nodes.id), wanted))
        paths |= dict.fromkeys(base.nodes.path.take(rows).texts())
    return list(paths)


def _with_manifest(
    node: Node, changes: ChangeSet, assets: Assets, written: list[tuple[ManifestId, int, int]]
) -> Node:
    """The node with the manifest that its changed chunks need."""
    if node.array is None:
        return node
    edits = changes.chunks.get(node.id, {})
    if not edits and not _shrinks(node.array):
        return node
    refs = _merged_refs(node, edits, assets)
    manifests = ManifestRefs.none(len(node.array.shape))
    if len(refs):
        manifest = Manifest(ManifestId.random(), (ArrayManifest(node.id, refs),))
        written.append((manifest.id, assets.put_manifest(manifest), len(refs)))
        low, high = refs.index.min(axis=0), refs.index.max(axis=0)
        box = [(int(a), int(b) + 1) for a, b in zip(low, high, strict=True)]
        manifests = ManifestRefs.of([(manifest.id, box)], len(node.array.shape))
    return replace(node, array=replace(node.array, manifests=manifests))


def _shrinks(array: ArrayData) -> bool:
    """Whether a manifest reaches past the grid, as after a resize."""
    extents = array.manifests.extents
    if extents.shape[1] != len(array.shape):
        # Other writers' empty extents do not say how far they reach.
        return len(extents) > 0
    return bool((extents[:, :, 1] > grid(array)).any())


def _merged_refs(
    node: Node, edits: dict[Coordinates, ChunkRef | None], assets: Assets
) -> ChunkRefs:
    """References of the node's manifests with the edits over them, inside the grid, sorted."""
    if node.array is None:
        raise InvalidInputError(f"{node.path} is a group and has no chunks")
    rank = len(node.array.shape)
    parts = [assets.manifest(item).array(node.id) for item in node.array.manifests.ids()]
    old = ChunkRefs.concat([ChunkRefs.empty(rank), *(part for part in parts if part is not None)])
    stays = (old.index < grid(node.array)).all(axis=1) & ~rows_in(old.index, edits)
    new = ChunkRefs.of([(at, ref) for at, ref in edits.items() if ref is not None], rank)
    return ChunkRefs.concat([old.take(stays), new]).sorted()


def grid(array: ArrayData) -> NDArray[np.uint32]:
    """Chunks along each dimension."""
    return np.array([dimension.num_chunks for dimension in array.shape], np.uint32)


def rows_in(index: NDArray[np.uint32], wanted: Collection[Coordinates]) -> NDArray[np.bool_]:
    """Which rows of `index` occur in `wanted`."""
    rank = index.shape[1]
    if rank == 0:
        return np.full(len(index), len(wanted) > 0)
    other = np.array(list(wanted), np.uint32).reshape(len(wanted), rank)
    return np.isin(as_keys(_as_bytes(index)), as_keys(_as_bytes(other)))


def _as_bytes(index: NDArray[np.uint32]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(index).view(np.uint8)


def _manifest_files(
    nodes: Nodes, old: ManifestFiles, written: list[tuple[ManifestId, int, int]]
) -> ManifestFiles:
    """The manifest files that the nodes use, from those known before and those just written."""
    new = ManifestFiles.of(written)
    joined = ManifestFiles(
        np.concatenate([old.id, new.id]),
        np.concatenate([old.size_bytes, new.size_bytes]),
        np.concatenate([old.num_chunk_refs, new.num_chunk_refs]),
        type(old.extra).concat([old.extra, new.extra]),
    )
    keys = as_keys(joined.id)
    order = np.argsort(keys, kind="stable")
    return joined.take(order[np.isin(keys[order], as_keys(nodes.manifest_id))])
