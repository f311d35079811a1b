"""Reading the bytes of native chunks: neighbours in one object are fetched together."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from icefloe.caching import ByteCache
from icefloe.errors import IcefloeError

if TYPE_CHECKING:
    from icefloe.format.chunk_refs import NativeRef
    from icefloe.storage import Storage

MAX_GAP = 64 * 2**10
"""Bytes between two ranges that are cheaper to read than a second request."""
MAX_SPAN = 16 * 2**20


@dataclass(slots=True)
class _Request:
    start: int
    length: int
    answer: asyncio.Future[bytes]


class ChunkReader:
    """Reads ranges of chunk objects.

    Requests that arrive in one turn of the event loop, as those of a zarr read do, are sorted and
    joined before any is sent.
    """

    def __init__(self, storage: Storage, *, cache_bytes: int = 0) -> None:
        self._storage = storage
        self._cache: ByteCache[bytes] = ByteCache(cache_bytes)
        self._waiting: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, list[_Request]]] = (
            WeakKeyDictionary()
        )
        self._tasks: set[asyncio.Task[None]] = set()

    async def read(self, ref: NativeRef, start: int, length: int) -> bytes:
        """Bytes of a chunk, counted from the chunk's own beginning."""
        if length <= 0:
            return b""
        key = f"chunks/{ref.chunk_id}"
        name = f"{key}/{ref.offset + start}+{length}"
        cached = self._cache.get(name)
        if cached is None:
            cached = await self._join(key, ref.offset + start, length)
            self._cache.put(name, cached, len(cached))
        return cached

    async def _join(self, key: str, start: int, length: int) -> bytes:
        loop = asyncio.get_running_loop()
        waiting = self._waiting.get(loop)
        if waiting is None:
            waiting = self._waiting[loop] = {}
            loop.call_soon(self._send, loop)
        request = _Request(start, length, loop.create_future())
        waiting.setdefault(key, []).append(request)
        return await request.answer

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        for key, requests in self._waiting.pop(loop).items():
            for group in _neighbours(requests):
                task = loop.create_task(self._fetch(key, group))
                # The loop itself holds tasks weakly.
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _fetch(self, key: str, group: list[_Request]) -> None:
        first = group[0].start
        span = max(item.start + item.length for item in group) - first
        try:
            data = await self._storage.get_range_async(key, first, span)
        except BaseException as error:
            if len(group) > 1 and isinstance(error, IcefloeError):
                # One bad reference must not fail its neighbours.
                await asyncio.gather(*(self._fetch(key, [item]) for item in group))
                return
            for item in group:
                if not item.answer.done():
                    item.answer.set_exception(error)
            return
        for item in group:
            if not item.answer.done():
                at = item.start - first
                item.answer.set_result(data[at : at + item.length])


def _neighbours(requests: list[_Request]) -> list[list[_Request]]:
    """Requests in groups that one range serves."""
    groups: list[list[_Request]] = []
    end = 0
    for item in sorted(requests, key=lambda item: item.start):
        stop = item.start + item.length
        if groups and item.start <= end + MAX_GAP and stop - groups[-1][0].start <= MAX_SPAN:
            groups[-1].append(item)
            end = max(end, stop)
        else:
            groups.append([item])
            end = stop
    return groups
