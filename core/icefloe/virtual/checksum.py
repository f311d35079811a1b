"""Is the object still the one that a reference was made for?"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from icefloe.errors import StorageError

MODIFIED = "virtual-chunk-modified"


@dataclass(frozen=True, slots=True)
class Checksum:
    """What a reference demands of its object; None demands nothing."""

    etag: str | None = None
    modified: int | None = None
    """Seconds since the epoch: the object must not be newer."""

    def verify(self, *, etag: str | None, modified: float | None) -> None:
        """Compare with what the store tells of the object whose bytes these are.

        Raises:
            StorageError: it has changed (`virtual-chunk-modified`), or the store does not tell
                (`virtual-chunk-fetch`).
        """
        if self.etag is not None:
            if etag is None:
                raise _unknown("ETag")
            if bare(etag) != bare(self.etag):
                raise _changed(f"its ETag is {bare(etag)}, not {bare(self.etag)}")
        if self.modified is not None:
            if modified is None:
                raise _unknown("time of last change")
            if modified > self.modified:
                raise _changed(
                    f"it was modified at {_time(modified)}, after {_time(self.modified)}"
                )


def bare(etag: str) -> str:
    return etag.removeprefix("W/").strip('"')


def _time(since: float) -> str:
    return datetime.fromtimestamp(since, UTC).isoformat(sep=" ", timespec="seconds")


def seconds(date: str | None) -> float | None:
    """Seconds since the epoch of an HTTP date; None if it is none."""
    try:
        return None if date is None else parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None


def _changed(detail: str) -> StorageError:
    return StorageError(
        f"the object has changed since the reference to it was made: {detail}",
        kind=MODIFIED,
    )


def _unknown(what: str) -> StorageError:
    return StorageError(
        f"the reference has a checksum, and the store tells no {what} to compare it with",
        kind="virtual-chunk-fetch",
    )
