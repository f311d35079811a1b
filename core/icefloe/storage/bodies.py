"""Bytes of an answer, as they come: never more than were asked for, and told to the deadline."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from aiohttp import ClientTimeout

from icefloe.storage.deadline import advance

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PART = 2**18


async def collect(parts: AsyncIterator[bytes], *, skip: int = 0, limit: int | None = None) -> bytes:
    """What comes after the first `skip` bytes, `limit` bytes at most; the rest is not read."""
    found: list[bytes] = []
    wanted = limit
    async for part in parts:
        advance(len(part))
        kept = part[skip:] if skip else part
        skip = max(skip - len(part), 0)
        if wanted is not None:
            kept = kept[:wanted]
            wanted -= len(kept)
        found.append(kept)
        if wanted == 0:
            break
    return b"".join(found)


def timeouts(deadline: float, *, sends: bool = False) -> Any:
    """For aiohttp, whose own would end a long download: leave time for another attempt.

    Not where something is sent: it may still be on its way long after it was handed over.
    """
    if deadline == math.inf:
        return ClientTimeout(total=None)
    waits = None if sends else deadline / 2
    return ClientTimeout(total=None, sock_connect=deadline / 3, sock_read=waits)
