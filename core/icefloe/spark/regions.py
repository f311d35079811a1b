"""The manifest of one region: what its base has, with what was written over it."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from icefloe.chunk_edits import rows_in
from icefloe.config import effective
from icefloe.errors import InvalidInputError
from icefloe.format import manifest as manifest_file
from icefloe.format.chunk_refs import ChunkRefs
from icefloe.format.ids import ManifestId
from icefloe.format.manifest import ArrayManifest, LocationCompression, Manifest
from icefloe.spark.chunk_grid import inside

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from icefloe.chunk_edits import EditColumns
    from icefloe.format.nodes import Node
    from icefloe.session import Session
    from icefloe.spark.chunk_grid import Box
    from icefloe.spark.planning import Cell

    type ReadManifest = Callable[[ManifestId], ChunkRefs | None]


@dataclass(frozen=True, slots=True)
class WrittenManifest:
    """A manifest in the store: all that a snapshot has to know of it."""

    id: bytes
    size: int
    count: int
    box: Box


@dataclass(frozen=True, slots=True)
class WrittenRegion:
    """What a task reports: no more than this crosses to the driver."""

    path: str
    cell: Cell
    manifest: WrittenManifest | None
    """None if the region has no chunks at all."""
    box: Box
    """The chunks that the cell has room for."""
    changed: bytes
    """One bit for each of them, in order, compressed."""
    stored_bytes: int = 0
    """Of the chunks that were written, as they are stored."""

    def changed_index(self) -> NDArray[np.uint32]:
        """(n, dimensions): the chunks that were written or deleted."""
        shape = [last - first for first, last in self.box]
        bits = np.frombuffer(zlib.decompress(self.changed), np.uint8)
        rows = np.flatnonzero(np.unpackbits(bits, count=int(np.prod(shape, dtype=np.int64))))
        places = np.zeros((len(rows), len(shape)), np.uint32)
        for axis, at in enumerate(np.unravel_index(rows, shape) if shape else ()):
            places[:, axis] = at + self.box[axis][0]
        return places


def base_refs(session: Session, path: str, box: Box, read: ReadManifest | None = None) -> ChunkRefs:
    """The references that an array has in a box of chunks.

    `read` gives those that it has in one manifest, for a caller who keeps them.
    """
    node = _array(session, path)
    parts: list[ChunkRefs] = []
    if node.array is None:
        return ChunkRefs.empty(len(box))
    manifests, assets = node.array.manifests, session.context.assets
    met = np.ones(len(manifests), np.bool_)
    if manifests.extents.shape[1] == len(box):
        low, high = np.array(box, np.int64).reshape(-1, 2).T
        extents = manifests.extents.astype(np.int64)
        met = ((extents[:, :, 0] < high) & (extents[:, :, 1] > low)).all(axis=1)
    for raw in manifests.object_id[met]:
        manifest_id = ManifestId(raw.tobytes())
        refs = read(manifest_id) if read else assets.manifest(manifest_id).array(node.id)
        if refs is not None and len(refs):
            parts.append(refs.take(inside(refs.index, box)))
    # Joining copies inline chunks, those of all the manifest.
    return parts[0] if len(parts) == 1 else ChunkRefs.concat([ChunkRefs.empty(len(box)), *parts])


def write_region(
    session: Session, path: str, cell: Cell, box: Box, edits: EditColumns
) -> WrittenRegion:
    """Write the manifest of a cell, after its chunks: the base's references, with edits over them.

    Args:
        session: at the base.
        path: of the array.
        cell: of its split.
        box: the chunks of the cell.
        edits: what was written, and what became fill value.
    """
    base = base_refs(session, path, box)
    refs = ChunkRefs.concat([base.take(~rows_in(base.index, edits.index)), edits.live()]).sorted()
    # What is fill value and was never there did not change.
    changed = edits.index[~edits.deleted | rows_in(edits.index, base.index)]
    manifest = write_manifest(session, path, refs)
    written = int(edits.live().length.sum())
    return WrittenRegion(path, cell, manifest, box, _bits(changed, box), written)


def write_manifest(session: Session, path: str, refs: ChunkRefs) -> WrittenManifest | None:
    """Store references as a manifest; None if there are none."""
    if not len(refs):
        return None
    assets, settings = session.context.assets, effective(session.config)
    compression = LocationCompression(
        min_refs=settings.location_compression_min_num_chunks,
        level=settings.location_compression_level,
        max_samples=settings.location_compression_max_training_samples,
        max_dictionary_bytes=settings.location_compression_max_size_bytes,
    )
    array = ArrayManifest(_array(session, path).id, refs)
    manifest = Manifest(ManifestId.random(), (array,))
    data = manifest_file.encode(manifest, compression=compression, level=assets.level)
    assets.put_manifests([(manifest.id, data)])
    low, high = refs.index.min(axis=0).tolist(), refs.index.max(axis=0).tolist()
    box = tuple((a, b + 1) for a, b in zip(low, high, strict=True))
    return WrittenManifest(manifest.id.raw, len(data), len(refs), box)


def read_manifest(session: Session, path: str, written: WrittenManifest | None) -> ChunkRefs:
    """The references of an array in a manifest that `write_manifest` stored."""
    node = _array(session, path)
    rank = 0 if node.array is None else len(node.array.shape)
    if written is None:
        return ChunkRefs.empty(rank)
    refs = session.context.assets.manifest(ManifestId(written.id)).array(node.id)
    return ChunkRefs.empty(rank) if refs is None else refs


def _bits(index: NDArray[np.uint32], box: Box) -> bytes:
    shape = [last - first for first, last in box]
    bits = np.zeros(int(np.prod(shape, dtype=np.int64)), np.bool_)
    if shape:
        low = np.array([first for first, _ in box])
        bits[np.ravel_multi_index(tuple((index.astype(np.int64) - low).T), shape)] = True
    else:
        bits[:] = len(index) > 0
    return zlib.compress(np.packbits(bits).tobytes())


def _array(session: Session, path: str) -> Node:
    node = session.node(path)
    if node is None or node.array is None:
        raise InvalidInputError(f"there is no array at {path} in {session.snapshot_id}")
    return node
