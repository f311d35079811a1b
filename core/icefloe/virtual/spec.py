"""One virtual chunk as its user describes it."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING

from icefloe.errors import InvalidInputError
from icefloe.format.chunk_refs import VirtualRef
from icefloe.virtual.locations import normalize

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class VirtualChunkSpec:
    """`length` bytes at `offset` of the object at `location` are the chunk at `index`.

    With a checksum, reading fails once the object has changed: an ETag, or the time of its last
    change, which is kept in whole seconds. An ETag says more, so it is kept where both are given.
    """

    index: Sequence[int]
    location: str
    offset: int
    length: int
    etag_checksum: str | None = None
    last_updated_at_checksum: datetime | None = None

    def ref(self) -> VirtualRef:
        """The reference for a manifest.

        Raises:
            InvalidInputError: a value is out of range, or the location is no URL we can read.
        """
        numbers = isinstance(self.offset, Integral) and isinstance(self.length, Integral)
        if not isinstance(self.location, str) or not numbers:
            raise InvalidInputError(
                f"location={self.location!r}, offset={self.offset!r}, length={self.length!r}: "
                "a location is a str, offset and length are ints",
                kind="invalid-virtual-ref",
            )
        if self.offset < 0:
            raise InvalidInputError(
                f"{self.location!r}: the offset is {self.offset}", kind="invalid-virtual-ref"
            )
        if self.length < 1:
            raise InvalidInputError(f"{self.location!r}: no bytes", kind="zero-length-chunk")
        etag = self.etag_checksum and self.etag_checksum.strip('"')
        modified = None if etag else last_modified(self.last_updated_at_checksum)
        return VirtualRef(
            normalize(self.location), self.offset, self.length, etag or None, modified
        )


def last_modified(when: datetime | None) -> int | None:
    """Whole seconds since the epoch, as manifests have them; fractions are dropped.

    Raises:
        InvalidInputError: the time has no time zone, or does not fit.
    """
    if when is None:
        return None
    if when.tzinfo is None:
        raise InvalidInputError(f"{when} has no time zone", kind="invalid-virtual-ref")
    seconds = int(when.timestamp())
    if not 0 < seconds < 2**32:
        raise InvalidInputError(f"{when} is not between 1970 and 2106", kind="invalid-virtual-ref")
    return seconds
