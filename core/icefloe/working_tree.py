"""A working tree: the nodes and chunks of a snapshot, with uncommitted changes over them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from icefloe import array_moves
from icefloe.adoption import outside_cells
from icefloe.changes import grid
from icefloe.chunk_edits import EditColumns, rows_in
from icefloe.chunk_reading import ChunkReader
from icefloe.config import effective
from icefloe.errors import (
    InvalidInputError,
)
from icefloe.format import lookup
from icefloe.format.chunk_refs import ChunkRefs, InlineRef, NativeRef, RefKind, VirtualRef
from icefloe.format.ids import ManifestId, NodeId
from icefloe.format.ragged import Ragged
from icefloe.node_tree import NodeTree, SessionMode, rank_of
from icefloe.packing import Packer
from icefloe.virtual import normalize_all
from icefloe.zarr_metadata import has_regular_grid

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from icefloe.adoption import Adopted
    from icefloe.assets import Assets
    from icefloe.chunk_edits import ChunkEdits, Coordinates
    from icefloe.config import RepositoryConfig
    from icefloe.format.chunk_refs import ChunkRef
    from icefloe.format.ids import SnapshotId
    from icefloe.format.metadata import Json
    from icefloe.format.nodes import ArrayData, ManifestRefs, Node
    from icefloe.format.snapshot import Snapshot
    from icefloe.virtual import Containers, VirtualReader

WHOLE = slice(None)


class ChunkType(IntEnum):
    """Where a chunk's bytes are. Equal to the numbers of `IcechunkStore.array_chunk_iterator`."""

    UNINITIALIZED = 0
    NATIVE = 1
    VIRTUAL = 2
    INLINE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a session needs of its repository; a pickle of it holds no secrets."""

    assets: Assets
    config: RepositoryConfig
    virtual: VirtualReader
    containers: Containers
    default_metadata: Mapping[str, Json] = field(default_factory=dict)


class WorkingTree(NodeTree):
    """Nodes and chunks, read and changed.

    Chunk bytes are uploaded as they are written, small ones by the pack.
    """

    def __init__(self, context: Context, snapshot: Snapshot, mode: SessionMode) -> None:
        super().__init__(snapshot, mode)
        self._context = context
        self._assets = context.assets
        self._settings = effective(context.config)
        self._reader = ChunkReader(
            context.assets.storage, cache_bytes=self._settings.chunk_cache_bytes
        )
        self._packer = self._new_packer()

    def chunk_ref_sync(self, path: str, coords: Coordinates) -> ChunkRef | None:
        """`chunk_ref`, blocking."""
        ref, candidates = self._look_up(path, coords)
        for manifest_id, node_id in candidates:
            payload = self._assets.manifest_payload_sync(manifest_id)
            ref = lookup.find_ref(payload, node_id, coords, name=f"manifests/{manifest_id}")
            if ref is not None:
                break
        return ref

    async def chunk_ref(self, path: str, coords: Coordinates) -> ChunkRef | None:
        """Where a chunk is; None if it was never written."""
        ref, candidates = self._look_up(path, coords)
        for manifest_id, node_id in candidates:
            payload = await self._assets.manifest_payload(manifest_id)
            ref = lookup.find_ref(payload, node_id, coords, name=f"manifests/{manifest_id}")
            if ref is not None:
                break
        return ref

    def _look_up(
        self, path: str, coords: Coordinates
    ) -> tuple[ChunkRef | None, list[tuple[ManifestId, NodeId]]]:
        """What our changes say of a chunk, and the manifests to ask where they say nothing."""
        with self._lock:
            node = self.node(path)
            if node is None or node.array is None or not _in_grid(node.array, coords):
                return None, []
            edits = self._view.changes.chunks.get(node.id)
            found, ref = edits.find(coords) if edits is not None else (False, None)
        if found:
            return ref, []
        manifests = node.array.manifests
        rows = manifests.covering(coords).tolist()
        return None, [(ManifestId(manifests.object_id[row].tobytes()), node.id) for row in rows]

    async def get_chunk(self, path: str, coords: Coordinates, part: slice = WHOLE) -> bytes | None:
        """Bytes of a chunk, or a part of them (step 1); None if it was never written."""
        # Taken first: what it waits to upload may be discarded while we look the chunk up.
        packer = self._packer
        ref = await self.chunk_ref(path, coords)
        match ref:
            case None:
                return None
            case InlineRef(data=data):
                return data[part]
            case NativeRef():
                waiting = packer.find(ref)
                if waiting is not None:
                    return waiting[part]
                start, stop, _ = part.indices(ref.length)
                return await self._reader.read(ref, start, max(stop - start, 0))
            case VirtualRef():
                start, stop, _ = part.indices(ref.length)
                return await self._context.virtual.read(ref, start, max(stop - start, 0))

    async def set_chunk(self, path: str, coords: Coordinates, data: bytes) -> None:
        """Write a chunk: a tiny one goes into its manifest, a small one into a pack.

        Raises:
            InvalidInputError: no bytes, or coordinates outside the array's grid.
            ReadOnlyError: the session was committed before the chunk was uploaded: it is not in
                that commit.
        """
        if not isinstance(data, bytes):
            raise InvalidInputError(
                f"chunk {coords} of {path} is of type {type(data).__name__}: pass bytes",
                kind="invalid-chunk",
            )
        if not data:
            raise InvalidInputError(
                f"chunk {coords} of {path} has no bytes: delete it instead",
                kind="zero-length-chunk",
            )
        if len(data) <= self._settings.inline_chunk_threshold_bytes:
            with self._lock:
                self._edits_of(path, coords).set(coords, InlineRef(data))
            return
        while True:
            with self._lock:
                self._edits_of(path, coords)
                packer = self._packer
            ref = await packer.write(data)
            with self._lock:
                edits = self._edits_of(path, coords)
                # Where changes were discarded meanwhile, the pack went with them.
                if packer is self._packer:
                    edits.set(coords, ref)
                    return

    def _edits_of(self, path: str, coords: Coordinates) -> ChunkEdits:
        """The edits of an array, to which one of this chunk may be added; under the lock."""
        self._require_writes()
        node = self._existing(path)
        _require_in_grid(node, coords)
        return self._view.changes.edits(node)

    async def delete_chunk(self, path: str, coords: Coordinates) -> None:
        """Forget a chunk; nothing happens if there is none."""
        with self._lock:
            self._require_writes()
        if await self.chunk_ref(path, coords) is not None:
            with self._lock:
                self._edits_of(path, coords).set(coords, None)

    def delete_chunks(self, path: str, index: NDArray[np.uint32]) -> None:
        """Forget many chunks of one array at once, all of which are there."""
        with self._lock:
            self._require_writes()
            self._view.changes.edits(self._existing(path)).extend(EditColumns.deletions(index))

    def set_refs(self, path: str, refs: ChunkRefs) -> None:
        """Write many references of one array at once; no bytes are moved.

        Raises:
            InvalidInputError: coordinates outside the array's grid, or a reference to no bytes.
        """
        with self._lock:
            self._require_writes()
            node = self._existing(path)
            edits = self._view.changes.edits(node)
            _require_fit(node, refs)
            edits.extend(EditColumns.written(refs))

    def adopt_manifests(self, path: str, adopted: Adopted) -> None:
        """Put manifests that others wrote in place of all that an array has in their cells.

        They must hold references inside the array's grid, and only in those cells. Nothing is read:
        a commit costs what it touches, not what the array holds.

        Raises:
            InvalidInputError: a manifest of the base reaches out of those cells.
        """
        with self._lock:
            self._require_writes()
            node = self._existing(path)
            if node.array is None:
                raise InvalidInputError(f"{path} is a group and has no chunks")
            outside_cells(self._view.manifests(node), adopted.sizes, adopted.cells)
            self._view.changes.adopt(node, adopted)

    def set_virtual_refs(
        self, path: str, refs: ChunkRefs, *, validate_containers: bool = True
    ) -> None:
        """Write references to chunks in other objects.

        Raises:
            InvalidInputError: a location is no URL, or no virtual chunk container has it.
        """
        locations = refs.location if refs.location is not None else Ragged.of([])
        locations = normalize_all(locations)
        if validate_containers:
            self._context.containers.validate(locations)
        self.set_refs(path, replace(refs, location=locations))

    def set_virtual_refs_leniently(
        self, path: str, refs: ChunkRefs, *, validate_containers: bool = True
    ) -> list[Coordinates] | None:
        """`set_virtual_refs`, with what no container has left out; its coordinates, or None."""
        locations = refs.location if refs.location is not None else Ragged.of([])
        if not validate_containers:
            self.set_virtual_refs(path, refs, validate_containers=False)
            return None
        homeless = self._context.containers.homeless(normalize_all(locations))
        self.set_virtual_refs(path, refs.take(~homeless))
        left_out = [tuple(coords) for coords in refs.index[homeless].tolist()]
        return left_out or None

    async def chunk_batches(
        self, path: str, leading: Coordinates = ()
    ) -> AsyncIterator[NDArray[np.uint32]]:
        """Coordinates of the chunks that exist, in batches of one manifest each.

        With `leading`, only those that begin so; manifests that cannot have any are not read.
        """
        async for refs in self.ref_batches(path, leading):
            yield refs.index

    async def chunk_coordinates(
        self, array_path: str, batch_size: int = 1000
    ) -> AsyncIterator[Coordinates]:
        """Coordinates of the chunks that exist, made into tuples `batch_size` at a time."""
        async for batch in self.chunk_batches(array_path):
            for first in range(0, len(batch), batch_size):
                for coords in batch[first : first + batch_size].tolist():
                    yield tuple(coords)

    async def ref_batches(self, path: str, leading: Coordinates = ()) -> AsyncIterator[ChunkRefs]:
        """References of an array, as `chunk_batches` gives their coordinates.

        All are of one moment, whatever others write or commit through this session meanwhile.
        """
        node, edits = self._node_and_edits(path)
        if node.array is None or len(leading) > len(node.array.shape):
            return
        for manifest_id in _manifests_with(node.array.manifests, leading):
            refs = await self._assets.manifest_async(manifest_id)
            part = _beginning(_visible(node, edits, refs.array(node.id)), leading)
            if len(part):
                yield part
        live = _beginning(edits.live(), leading)
        if len(live):
            yield live

    def refs(self, path: str) -> ChunkRefs:
        """All references of an array, sorted."""
        node, edits = self._node_and_edits(path)
        if node.array is None:
            raise InvalidInputError(f"{path} is a group and has no chunks")
        manifests = self._assets.manifests(node.array.manifests.ids())
        parts = [_visible(node, edits, manifest.array(node.id)) for manifest in manifests]
        return ChunkRefs.concat([edits.live(), *parts]).sorted()

    def _node_and_edits(self, path: str) -> tuple[Node, EditColumns]:
        """A node, and the edits of its chunks, at one moment."""
        with self._lock:
            node = self._existing(path)
            edits = self._view.changes.chunks.get(node.id)
            rank = rank_of(node.array) or 0
            return node, EditColumns.of({}, rank) if edits is None else edits.columns()

    def chunk_type(self, array_path: str, chunk_coordinates: Sequence[int]) -> ChunkType:
        """Raises NotFoundError if there is no array at the path."""
        self._existing(array_path)
        match self.chunk_ref_sync(array_path, tuple(chunk_coordinates)):
            case None:
                return ChunkType.UNINITIALIZED
            case InlineRef():
                return ChunkType.INLINE
            case NativeRef():
                return ChunkType.NATIVE
            case VirtualRef():
                return ChunkType.VIRTUAL

    def resolve_location(self, location: str) -> str:
        """The URL of a virtual chunk, with a container's name (`vcc://`) resolved."""
        named = location.startswith("vcc://")
        return self._context.containers.find(location)[1] if named else location

    def all_virtual_chunk_locations(self) -> list[str]:
        """The location of every virtual chunk, one for each chunk."""
        found: list[str] = []
        for path in ["/", *self.paths()]:
            node = self.node(path)
            if node is None or node.array is None:
                continue
            refs = self.refs(path)
            if refs.location is not None:
                found += refs.location.take(refs.kind == RefKind.VIRTUAL).texts()
        return found

    def shift_array(self, array_path: str, chunk_offset: Iterable[int]) -> None:
        """Move all chunks by an offset in chunks; what leaves the grid is dropped.

        Raises:
            InvalidInputError: the array's chunks differ in shape, or the offset does not fit.
        """
        self._move_chunks(
            array_path, lambda refs, grid: array_moves.shift(refs, grid, list(chunk_offset))
        )

    def reindex_array(
        self,
        array_path: str,
        forward: Callable[[Iterable[int]], Iterable[int] | None],
        backward: Callable[[Iterable[int]], Iterable[int] | None] | None = None,
    ) -> None:
        """Move each chunk to where `forward` says; see `array_moves.reindex`."""
        self._move_chunks(
            array_path, lambda refs, grid: array_moves.reindex(refs, grid, forward, backward)
        )

    def _move_chunks(
        self, path: str, move: Callable[[ChunkRefs, NDArray[np.uint32]], EditColumns]
    ) -> None:
        self._require_writes()
        with self._alone("rearranged"):
            node, limits = self._shiftable(path)
            moved = move(self.refs(path), limits)
            with self._lock:
                self._view.changes.edits(node).extend(moved)
                self._view.changes.borrowed.add(self._registered_base())

    def _registered_base(self) -> SnapshotId:
        """The snapshot in the repo object that this session stands on."""
        return self._view.base.id

    def _shiftable(self, path: str) -> tuple[Node, NDArray[np.uint32]]:
        node = self._existing(path)
        if node.array is None or not has_regular_grid(node.user_data):
            raise InvalidInputError(
                f"the chunks of {path} differ in shape, so they cannot change places",
                kind="invalid-array-for-shift",
            )
        return node, grid(node.array)

    def _new_packer(self) -> Packer:
        settings = self._settings
        return Packer(
            self._assets,
            max_chunk_bytes=settings.packing_max_chunk_bytes if settings.packing_enabled else 0,
            target_bytes=settings.packing_target_bytes,
        )

    def _start_over(self, base: Snapshot) -> None:
        super()._start_over(base)
        self._packer = self._new_packer()


def _manifests_with(manifests: ManifestRefs, leading: Coordinates) -> list[ManifestId]:
    """Those whose extents have chunks that begin so."""
    if manifests.extents.shape[1] < len(leading):
        return manifests.ids()
    point = np.array(leading, np.int64)
    low, high = manifests.extents[:, : len(leading), 0], manifests.extents[:, : len(leading), 1]
    rows = ((low <= point) & (point < high)).all(axis=1)
    return [ManifestId(row.tobytes()) for row in manifests.object_id[rows]]


def _beginning(refs: ChunkRefs, leading: Coordinates) -> ChunkRefs:
    """The references whose first coordinates are these."""
    if not leading:
        return refs
    return refs.take((refs.index[:, : len(leading)] == np.array(leading)).all(axis=1))


def _in_grid(array: ArrayData, coords: Coordinates) -> bool:
    return len(coords) == len(array.shape) and all(
        0 <= at < dimension.num_chunks for at, dimension in zip(coords, array.shape, strict=True)
    )


def _visible(node: Node, edits: EditColumns, refs: ChunkRefs | None) -> ChunkRefs:
    """Those of a manifest's references that lie in the grid and were not edited."""
    if node.array is None or refs is None or not len(refs):
        return ChunkRefs.empty(rank_of(node.array) or 0)
    rows = (refs.index < grid(node.array)).all(axis=1)
    if len(edits):
        rows &= ~rows_in(refs.index, edits.index)
    return refs.take(rows)


def _require_fit(node: Node, refs: ChunkRefs) -> None:
    """Raises InvalidInputError if a reference is outside the grid, or to no bytes."""
    limits = grid(node.array) if node.array is not None else np.zeros(0, np.uint32)
    if refs.dimensions != len(limits):
        raise InvalidInputError(
            f"{refs.dimensions} coordinates for the {len(limits)} dimensions of {node.path}",
            kind="invalid-chunk-index",
        )
    outside = (refs.index >= limits).any(axis=1)
    if bool(outside.any()):
        _require_in_grid(node, tuple(refs.index[int(outside.argmax())].tolist()))
    empty = (refs.kind != RefKind.INLINE) & (refs.length == 0)
    if bool(empty.any()):
        at = tuple(refs.index[int(empty.argmax())].tolist())
        raise InvalidInputError(
            f"chunk {at} of {node.path} has length 0: leave it out", kind="zero-length-chunk"
        )


def _require_in_grid(node: Node, coords: Coordinates) -> None:
    if node.array is None:
        raise InvalidInputError(f"{node.path} is a group and has no chunks")
    if not _in_grid(node.array, coords):
        counts = tuple(grid(node.array).tolist())
        raise InvalidInputError(
            f"chunk {coords} is outside the grid {counts} of {node.path}",
            kind="invalid-chunk-index",
        )
