"""Chunk packing: many small chunks in one object, so that a commit costs few requests.

Official readers follow the offset and length of each reference, so they read packs as they are.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from icefloe.format.chunk_refs import NativeRef
from icefloe.format.ids import ChunkId

if TYPE_CHECKING:
    from icefloe.assets import Assets

_MAX_UPLOADS = 3
"""Full packs under way at once: with the open one, they bound the memory that packing takes."""
_WAIT = 0.002


@dataclass(slots=True)
class _Pack:
    id: ChunkId = field(default_factory=ChunkId.random)
    data: bytearray = field(default_factory=bytearray)


@dataclass(frozen=True, slots=True)
class _FullPack:
    id: ChunkId
    data: bytes


class Packer:
    """Gathers the small chunks of one session, and keeps each readable until it is uploaded.

    Chunks of `max_chunk_bytes` and more go into objects of their own, and so do all if that is 0.
    """

    def __init__(self, assets: Assets, *, max_chunk_bytes: int, target_bytes: int) -> None:
        self._assets = assets
        self._largest = max_chunk_bytes
        self._target = target_bytes
        self._lock = threading.Lock()
        self._uploads = 0
        self._open = _Pack()
        self._full: dict[ChunkId, _FullPack] = {}

    async def write(self, data: bytes) -> NativeRef:
        """Store a chunk; a large one at once, in an object of its own."""
        if len(data) >= self._largest:
            ref = NativeRef(ChunkId.random(), 0, len(data))
            await self._assets.put_chunk(ref.chunk_id, data)
            return ref
        # Writers may run in several event loops, which no semaphore or event of asyncio can serve.
        while self._uploads >= _MAX_UPLOADS:  # noqa: ASYNC110
            await asyncio.sleep(_WAIT)
        with self._lock:
            ref = NativeRef(self._open.id, len(self._open.data), len(data))
            self._open.data += data
            full = self._seal() if len(self._open.data) >= self._target else None
            self._uploads += full is not None
        if full is not None:
            await self._upload(full)
        return ref

    def find(self, ref: NativeRef) -> bytes | None:
        """The bytes of a chunk that is not uploaded yet; None if it is, or is not ours."""
        with self._lock:
            pack = self._open if self._open.id == ref.chunk_id else self._full.get(ref.chunk_id)
            if pack is None:
                return None
            return bytes(pack.data[ref.offset : ref.offset + ref.length])

    def flush(self) -> None:
        """Upload all that is waiting. What fails to upload stays here for another try."""
        with self._lock:
            if self._open.data:
                self._seal()
            waiting = list(self._full.values())
        if waiting:
            self._assets.put_chunks([(pack.id, pack.data) for pack in waiting])
            self._forget(waiting)

    def _seal(self) -> _FullPack:
        full = _FullPack(self._open.id, bytes(self._open.data))
        self._full[full.id], self._open = full, _Pack()
        return full

    async def _upload(self, pack: _FullPack) -> None:
        try:
            await self._assets.put_chunk(pack.id, pack.data)
        finally:
            with self._lock:
                self._uploads -= 1
        self._forget([pack])

    def _forget(self, packs: list[_FullPack]) -> None:
        with self._lock:
            for pack in packs:
                self._full.pop(pack.id, None)
