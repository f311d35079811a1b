"""The time as the format counts it: microseconds since the epoch, always ascending."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

MAX_CLOCK_SKEW = 600.0
"""Seconds: what the official client lets the clocks of writer and store differ."""
_EPOCH = datetime.fromtimestamp(0, UTC)
_MICROSECOND = timedelta(microseconds=1)


def now() -> int:
    return time.time_ns() // 1000


def next_time(after: int) -> int:
    """Now, but later than `after`: clocks differ, and times must ascend."""
    return max(now(), after + 1)


def to_datetime(microseconds: int) -> datetime:
    """Exact, as a float of seconds would not be."""
    return _EPOCH + microseconds * _MICROSECOND


def from_datetime(when: datetime) -> int:
    """Rounded down; a naive time is local."""
    return (when.astimezone(UTC) - _EPOCH) // _MICROSECOND
