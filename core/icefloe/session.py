"""Sessions: one snapshot to read, and the changes made on top of it until they are committed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from icefloe.changes import ChangeSet, apply, array_data, grid, rows_in
from icefloe.errors import InvalidInputError, NotFoundError, ReadOnlyError, SessionStateError
from icefloe.format import lookup, manifest, paths
from icefloe.format.chunk_refs import InlineRef, NativeRef, VirtualRef
from icefloe.format.ids import ChunkId, ManifestId, NodeId, SnapshotId
from icefloe.format.nodes import Node
from icefloe.format.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from numpy.typing import NDArray

    from icefloe.assets import Assets
    from icefloe.changes import Coordinates
    from icefloe.format.chunk_refs import ChunkRef
    from icefloe.format.metadata import Json
    from icefloe.format.nodes import ArrayData
    from icefloe.zarr_store import IcechunkStore

WHOLE = slice(None)


class Publisher(Protocol):
    """The repository's part of a commit."""

    def publish_commit(self, branch: str, base: SnapshotId, snapshot: Snapshot) -> None:
        """Make a written snapshot the tip of the branch, in one compare-and-swap.

        Raises:
            ConflictError: the branch is no longer at `base`.
        """
        ...

    def next_time(self, after: int) -> int:
        """Now in microseconds since the epoch, and later than `after`."""
        ...


class Session:
    """A view of one snapshot. With a branch it takes changes, which stay private until `commit`.

    Chunk bytes are uploaded as they are written; everything else is written by `commit`. A session
    that fails or is dropped leaves no trace but unreferenced objects, which garbage collection
    removes.
    """

    def __init__(
        self,
        assets: Assets,
        snapshot: Snapshot,
        *,
        branch: str | None = None,
        publisher: Publisher | None = None,
        inline_threshold: int = 512,
        default_metadata: Mapping[str, Json] | None = None,
    ) -> None:
        self._assets = assets
        self._base = snapshot
        self._branch = branch
        self._publisher = publisher
        self._inline_threshold = inline_threshold
        self._default_metadata = dict(default_metadata or {})
        self._changes = ChangeSet()

    def __repr__(self) -> str:
        mode = "read-only" if self.read_only else f"branch={self._branch!r}"
        return f"<icefloe.Session {self._assets.storage.url} at {self.snapshot_id}, {mode}>"

    def __getstate__(self) -> dict[str, Any]:
        if not self.read_only:
            raise SessionStateError(
                "a writable session cannot be pickled: what its copy writes would be lost",
                kind="writable-session-pickled",
            )
        return self.__dict__

    @property
    def read_only(self) -> bool:
        return self._publisher is None

    @property
    def branch(self) -> str | None:
        return self._branch

    @property
    def snapshot_id(self) -> str:
        """The snapshot that this session reads, before its own changes."""
        return str(self._base.id)

    @property
    def has_uncommitted_changes(self) -> bool:
        return bool(self._changes)

    @property
    def store(self) -> IcechunkStore:
        """A zarr store on this session; needs the extra `zarr`."""
        # zarr is optional and lives above this layer.
        from icefloe.zarr_store import IcechunkStore

        return IcechunkStore(self)

    def discard_changes(self) -> None:
        """Forget everything since the session began, or since its last commit."""
        self._require_writable()
        self._changes = ChangeSet()

    def node(self, path: str) -> Node | None:
        """The group or array at a path, with this session's changes."""
        if path in self._changes.nodes:
            return self._changes.nodes[path]
        row = self._base.nodes.row(path)
        return None if row is None else self._base.nodes[row]

    def paths(self, below: str = "/") -> list[str]:
        """Paths of all nodes under `below`, itself left out, in byte order."""
        rows = self._base.nodes.below(below)
        found = set(
            self._base.nodes.path.take(np.arange(rows.start, rows.stop, dtype=np.int64)).texts()
        )
        for path, node in self._changes.nodes.items():
            if node is None:
                found.discard(path)
            elif paths.is_descendant(path, below):
                found.add(path)
        return sorted(found, key=str.encode)

    def get_node_id(self, path: str) -> str:
        """Raises NotFoundError if there is no node at the path."""
        return str(self._existing(path).id)

    def set_node(self, path: str, zarr_json: bytes) -> None:
        """Create or update the node at a path from the bytes of its zarr.json.

        Raises:
            InvalidInputError: a bad path, bad metadata, or an array above the path.
        """
        self._require_writable()
        paths.validate(path)
        for ancestor in paths.ancestors(path):
            above = self.node(ancestor)
            if above is not None and above.array is not None:
                raise InvalidInputError(f"{path} cannot lie below the array {ancestor}")
        array = array_data(zarr_json, path)
        old = self.node(path)
        if old is not None and _rank(old.array) != _rank(array):
            self.delete_node(path)
            old = None
        if old is None:
            node = Node(NodeId.random(), path, zarr_json, array)
        elif old.user_data == zarr_json:
            return
        else:
            if array is not None and old.array is not None:
                array = replace(array, manifests=old.array.manifests)
            node = replace(old, user_data=zarr_json, array=array)
        self._changes.set_node(node, is_new=old is None)

    def delete_node(self, path: str) -> None:
        """Delete a node and all below it; nothing happens if there is none."""
        self._require_writable()
        for below in [*self.paths(path), path]:
            node = self.node(below)
            if node is not None:
                in_base = self._base.nodes.row(below) is not None
                self._changes.delete_node(node, in_base=in_base)

    async def chunk_ref(self, path: str, coords: Coordinates) -> ChunkRef | None:
        """Where a chunk is; None if it was never written."""
        node = self.node(path)
        if node is None or node.array is None:
            return None
        edits = self._changes.chunks.get(node.id, {})
        if coords in edits:
            return edits[coords]
        if not _in_grid(node.array, coords):
            return None
        manifests = node.array.manifests
        for row in manifests.covering(coords).tolist():
            manifest_id = ManifestId(manifests.object_id[row].tobytes())
            payload = await self._assets.manifest_payload(manifest_id)
            ref = lookup.find_ref(payload, node.id, coords, name=f"manifests/{manifest_id}")
            if ref is not None:
                return ref
        return None

    async def get_chunk(self, path: str, coords: Coordinates, part: slice = WHOLE) -> bytes | None:
        """Bytes of a chunk, or a part of them (step 1); None if it was never written."""
        ref = await self.chunk_ref(path, coords)
        match ref:
            case None:
                return None
            case InlineRef(data=data):
                return data[part]
            case NativeRef():
                start, stop, _ = part.indices(ref.length)
                return await self._assets.chunk(ref, start, max(stop - start, 0))
            case VirtualRef():
                raise InvalidInputError(
                    f"chunk {coords} of {path} is virtual ({ref.location}): this version of "
                    "icefloe does not read virtual chunks yet; the official client does",
                    kind="virtual-chunk-unsupported",
                )

    async def set_chunk(self, path: str, coords: Coordinates, data: bytes) -> None:
        """Write a chunk: small ones go into the manifest, others into an object of their own.

        Raises:
            InvalidInputError: no bytes, or coordinates outside the array's grid.
        """
        self._require_writable()
        node = self._existing(path)
        if not data:
            raise InvalidInputError(
                f"chunk {coords} of {path} has no bytes: delete it instead",
                kind="zero-length-chunk",
            )
        self._require_in_grid(node, coords)
        if len(data) <= self._inline_threshold:
            ref: ChunkRef = InlineRef(data)
        else:
            ref = NativeRef(ChunkId.random(), 0, len(data))
            await self._assets.put_chunk(ref.chunk_id, data)
        self._changes.set_chunk(node.id, coords, ref)

    async def delete_chunk(self, path: str, coords: Coordinates) -> None:
        """Forget a chunk; nothing happens if there is none."""
        self._require_writable()
        node = self.node(path)
        if node is not None and await self.chunk_ref(path, coords) is not None:
            self._changes.set_chunk(node.id, coords, None)

    async def chunk_coordinates(self, path: str) -> AsyncIterator[NDArray[np.uint32]]:
        """Coordinates of the chunks that exist, in batches of one manifest each."""
        node = self._existing(path)
        if node.array is None:
            return
        edits = self._changes.chunks.get(node.id, {})
        limits = grid(node.array)
        for manifest_id in node.array.manifests.ids():
            payload = await self._assets.manifest_payload(manifest_id)
            name = f"manifests/{manifest_id}"
            refs = manifest.decode_payload(payload, name=name).array(node.id)
            if refs is not None:
                index = refs.index[(refs.index < limits).all(axis=1)]
                yield index[~rows_in(index, edits)]
        written = sorted(coords for coords, ref in edits.items() if ref is not None)
        if written:
            yield np.array(written, np.uint32).reshape(len(written), len(limits))

    def commit(
        self,
        message: str,
        metadata: Mapping[str, Json] | None = None,
        *,
        allow_empty: bool = False,
    ) -> str:
        """Write manifests, snapshot and log, then move the branch; the new snapshot's id.

        All of it becomes visible at once, or nothing does. The session is read-only afterwards.

        Raises:
            ConflictError: the branch moved since this session began. Nothing is lost: the session
                keeps its changes.
            SessionStateError: there is nothing to commit.
        """
        publisher = self._require_writable()
        if not self._changes and not allow_empty:
            raise SessionStateError(
                "nothing to commit: pass allow_empty=True to commit anyway",
                kind="no-changes-to-commit",
            )
        nodes, manifest_files = apply(self._changes, self._base, self._assets)
        snapshot = Snapshot(
            id=SnapshotId.random(),
            nodes=nodes,
            manifest_files=manifest_files,
            flushed_at=publisher.next_time(self._base.flushed_at),
            message=message,
            metadata=self._default_metadata | dict(metadata or {}),
        )
        self._assets.put_snapshot(snapshot)
        self._assets.put_transaction_log(self._changes.log(snapshot.id))
        publisher.publish_commit(self._branch or "", self._base.id, snapshot)
        self._base, self._changes, self._publisher = snapshot, ChangeSet(), None
        return self.snapshot_id

    def _existing(self, path: str) -> Node:
        node = self.node(path)
        if node is None:
            raise NotFoundError(f"there is no node at {path}", kind="node-not-found")
        return node

    def _require_writable(self) -> Publisher:
        if self._publisher is None:
            raise ReadOnlyError(
                f"this session is read-only at {self.snapshot_id}: open one with writable_session",
                kind="read-only-session",
            )
        return self._publisher

    def _require_in_grid(self, node: Node, coords: Coordinates) -> None:
        if node.array is None:
            raise InvalidInputError(f"{node.path} is a group and has no chunks")
        if not _in_grid(node.array, coords):
            counts = tuple(grid(node.array).tolist())
            raise InvalidInputError(
                f"chunk {coords} is outside the grid {counts} of {node.path}",
                kind="invalid-chunk-index",
            )


def _rank(array: ArrayData | None) -> int | None:
    return None if array is None else len(array.shape)


def _in_grid(array: ArrayData, coords: Coordinates) -> bool:
    return len(coords) == len(array.shape) and all(
        0 <= at < dimension.num_chunks for at, dimension in zip(coords, array.shape, strict=True)
    )
