"""How long an operation on a store may take: a time to get going, and more for what it moves."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from icefloe.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SLOWEST = 16 * 2**10
"""Bytes per second. What moves more slowly does not count as moving."""
_UNLIMITED = math.inf

_running: ContextVar[Deadline | None] = ContextVar("icefloe_deadline", default=None)


class Deadline:
    """When one operation is given up, all its attempts and waits included.

    So many seconds after it began; and later by the time that the bytes which it sends, and those
    that have come, would take at the slowest. An upload or download that advances is never cut off.
    """

    def __init__(self, seconds: float, *, sends: int = 0) -> None:
        self.seconds = seconds
        self._began = time.monotonic()
        self._more = sends / SLOWEST
        self._timer: asyncio.Timeout | None = None

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    @property
    def left(self) -> float:
        return self.seconds + self._more - self.elapsed

    def sooner(self, share: float) -> Deadline:
        """One that leaves time, of what this one has, for something to be done afterwards."""
        earlier = Deadline(self.seconds * share)
        earlier._began, earlier._more = self._began, self._more
        return earlier

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[None]:
        """Cancel what runs inside once no time is left: TimeoutError."""
        if self.seconds == _UNLIMITED:
            yield
            return
        token = _running.set(self)
        try:
            async with asyncio.timeout(max(self.left, 0)) as self._timer:
                yield
        finally:
            self._timer = None
            _running.reset(token)

    def extend(self, received: int) -> None:
        self._more += received / SLOWEST
        if self._timer is not None and not self._timer.expired():
            self._timer.reschedule(asyncio.get_running_loop().time() + max(self.left, 0))


def advance(received: int) -> None:
    """Tell the operation that this runs for that so many bytes have come, or will."""
    deadline = _running.get()
    if deadline is not None:
        deadline.extend(received)


def check_deadline(seconds: object) -> float:
    """Raises InvalidInputError unless it is a positive number of seconds."""
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not seconds > 0:  # type: ignore[operator]
        raise InvalidInputError(
            f"deadline={seconds!r}: the deadline of operations on a store is a positive number of "
            "seconds"
        )
    return float(seconds)  # type: ignore[arg-type]
