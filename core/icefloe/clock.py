"""The time as the format counts it: microseconds since the epoch, always ascending."""

from __future__ import annotations

import time
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Any

import numpy as np

from icefloe.errors import InvalidInputError

type Moment = datetime | date | str | np.datetime64
"""A time as people give it: see `parse_time`."""

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


def parse_time(when: Any, name: str, naive: tzinfo | None = UTC) -> datetime:
    """A time as people give it, exact to the microsecond.

    Args:
        when: a datetime, a date, text in ISO 8601, `numpy.datetime64` or a pandas Timestamp.
        name: of the argument, for messages.
        naive: the zone of a time without one; None for that of this machine.

    Raises:
        InvalidInputError: it is none of these, or no time between the years 1 and 9999.
    """
    given = when
    try:
        if isinstance(when, np.datetime64):
            # Years and months are told from days only here; NaT becomes None.
            when = when.astype("datetime64[us]").item()
        elif isinstance(when, str):
            when = datetime.fromisoformat(when.strip())
        # pandas' NaT equals nothing, itself included.
        elif isinstance(when, datetime) and when == when and hasattr(when, "to_pydatetime"):
            when = when.to_pydatetime(warn=False)
        if isinstance(when, date) and not isinstance(when, datetime):
            when = datetime(when.year, when.month, when.day)
        if isinstance(when, datetime) and when == when:
            zoned = when if when.tzinfo or naive is None else when.replace(tzinfo=naive)
            return zoned.astimezone(UTC)
    except (ValueError, OverflowError):
        if isinstance(when, datetime):
            local = naive is None and when.tzinfo is None
            raise InvalidInputError(
                f"{name}={given!a} is no time between the years 1 and 9999 of UTC"
                + (", because it counts as local: say .replace(tzinfo=UTC)" if local else ""),
                kind="invalid-time",
            ) from None
    raise InvalidInputError(
        f"{name}={given!a} is no time: pass a datetime, a date, text such as "
        "'2026-11-18T12:00:00+00:00', numpy.datetime64 or pandas.Timestamp; without a time zone it "
        f"counts as {'local' if naive is None else 'UTC'}",
        kind="invalid-time",
    )


def from_datetime(when: datetime) -> int:
    """Rounded down; a naive time is local."""
    return (when.astimezone(UTC) - _EPOCH) // _MICROSECOND
