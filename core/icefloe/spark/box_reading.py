"""Reading boxes of an array: the chunks of a box together, not one by one as zarr does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

from icefloe.caching import ByteCache
from icefloe.chunk_reading import MAX_GAP, MAX_SPAN
from icefloe.format.chunk_refs import RefKind
from icefloe.format.ids import ChunkId, as_keys
from icefloe.spark.chunk_grid import ChunkGrid, volume
from icefloe.spark.decoding import ChunkDecoder
from icefloe.spark.planning import array_node
from icefloe.spark.regions import base_refs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from icefloe.format.chunk_refs import ChunkRefs
    from icefloe.format.ids import ManifestId
    from icefloe.format.ragged import Ints
    from icefloe.session import Session
    from icefloe.spark.chunk_grid import Box
    from icefloe.storage import Storage
    from icefloe.storage.protocol import ObjectRange

_CACHE_BYTES = 32 * 2**20
_REF_BYTES = 64
"""What a reference takes in memory, about, without inline bytes."""


class BoxReader:
    """Reads boxes of elements of one array.

    Chunks that lie together in their objects are fetched with few requests, and decoded without
    zarr. zarr itself reads what only it can: virtual chunks, shards, text, chunks that differ in
    shape, codecs that must be awaited.
    """

    def __init__(self, session: Session, path: str) -> None:
        """The session must be read-only."""
        self.array = zarr.open_array(session.store, path=path.strip("/"), mode="r")
        self._session = session
        self._path = path
        self._grid = ChunkGrid.of(array_node(session, path))
        self._decoder = ChunkDecoder(self.array)
        self._in_bulk = self._decoder.is_capable and all(axis.size for axis in self._grid.axes)
        self._refs: ByteCache[ChunkRefs] = ByteCache(_CACHE_BYTES)

    def read(self, elements: Box) -> NDArray[Any]:
        """The values of a box; they may be read-only."""
        found = self._read_in_bulk(elements) if self._in_bulk and volume(elements) else None
        if found is None:
            return np.asarray(self.array[tuple(slice(*span) for span in elements)])
        return found

    def _read_in_bulk(self, elements: Box) -> NDArray[Any] | None:
        """None if zarr has to read the box."""
        chunks = self._grid.chunks(elements)
        refs = base_refs(self._session, self._path, chunks, self._manifest_refs)
        if bool((refs.kind == RefKind.VIRTUAL).any()):
            return None
        shape = tuple(axis.size for axis in self._grid.axes)
        parts = _parts(self._session.context.assets.storage, refs)
        try:
            decoded = self._decoder.decode(parts, shape)
        except Exception:
            # Codecs raise whatever their libraries do. zarr knows better, or says what is wrong.
            return None
        whole = _joined(self._tiles(decoded, refs, chunks), chunks)
        first = self._grid.elements(chunks)
        inner = [slice(a - low, b - low) for (a, b), (low, _) in zip(elements, first, strict=True)]
        return np.asarray(whole[tuple(inner)])

    def _manifest_refs(self, manifest_id: ManifestId) -> ChunkRefs | None:
        key = str(manifest_id)
        refs = self._refs.get(key)
        if refs is None:
            assets, node = self._session.context.assets, array_node(self._session, self._path)
            refs = assets.manifest(manifest_id).array(node.id)
            if refs is not None:
                inline = 0 if refs.inline is None else len(refs.inline.data)
                self._refs.put(key, refs, _REF_BYTES * len(refs) + inline)
        return refs

    def _tiles(self, decoded: NDArray[Any], refs: ChunkRefs, chunks: Box) -> NDArray[Any]:
        """The values of all chunks in a box, in order, missing ones included."""
        steps = np.cumprod([1, *(last - first for first, last in chunks[:0:-1])])[::-1]
        low = np.array([first for first, _ in chunks], np.int64)
        at = (refs.index.astype(np.int64) - low) @ steps[: len(chunks)]
        count = volume(chunks)
        if len(at) == count and bool((at[1:] > at[:-1]).all()):
            return decoded
        tiles = np.full((count, *decoded.shape[1:]), self._decoder.fill, self._decoder.dtype)
        tiles[at] = decoded
        return tiles


def _joined(tiles: NDArray[Any], chunks: Box) -> NDArray[Any]:
    """Chunks, one behind the other, as the one array that they are parts of."""
    counts, sizes = [last - first for first, last in chunks], tiles.shape[1:]
    rank = len(sizes)
    order = [axis + part for axis in range(rank) for part in (0, rank)]
    shape = [count * size for count, size in zip(counts, sizes, strict=True)]
    return tiles.reshape([*counts, *sizes]).transpose(order).reshape(shape)


def _parts(storage: Storage, refs: ChunkRefs) -> list[memoryview]:
    """The bytes of each chunk, in order."""
    ranges, place, start, length = _places(refs)
    views = [memoryview(data) for data in storage.get_ranges(ranges)]
    if refs.inline is not None:
        views.append(memoryview(refs.inline.data))
    stop = start + length
    return [
        views[number][first:last]
        for number, first, last in zip(place.tolist(), start.tolist(), stop.tolist(), strict=True)
    ]


def _places(refs: ChunkRefs) -> tuple[list[ObjectRange], Ints, Ints, Ints]:
    """What to fetch; and for each chunk the number of its range, where it begins there, its length.

    Inline chunks are numbered as if their bytes came after all ranges.
    """
    start, length = refs.offset.astype(np.int64), refs.length.astype(np.int64)
    place = np.zeros(len(refs), np.int64)
    native = refs.kind == RefKind.NATIVE
    rows = np.flatnonzero(native)
    rows = rows[np.lexsort((start[rows], as_keys(refs.chunk_id[rows])))]
    keys, first, last = as_keys(refs.chunk_id[rows]), start[rows], start[rows] + length[rows]
    begins = np.ones(len(rows), np.bool_)
    begins[1:] = (
        (keys[1:] != keys[:-1])
        | (first[1:] > last[:-1] + MAX_GAP)
        | (first[1:] // MAX_SPAN != first[:-1] // MAX_SPAN)
    )
    heads = np.flatnonzero(begins)
    low, high = first[heads], np.maximum.reduceat(last, heads) if len(heads) else heads
    place[rows] = np.cumsum(begins) - 1
    start[rows] -= low[place[rows]]
    if refs.inline is not None:
        place[~native] = len(heads)
        start[~native], length[~native] = refs.inline.start[~native], refs.inline.length[~native]
    names = [f"chunks/{ChunkId(raw.tobytes())}" for raw in refs.chunk_id[rows[heads]]]
    ranges = [*zip(names, low.tolist(), (high - low).tolist(), strict=True)]
    return ranges, place, start, length
