"""Neighbouring ranges of one object, joined into few requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.virtual.checksum import Checksum

GAP = 64 * 2**10
"""A gap of so many bytes costs less than a request."""
LIMIT = 16 * 2**20
"""Ranges are not joined beyond this size, so that large reads still overlap."""


@dataclass(frozen=True, slots=True)
class Place:
    """An object, as one container serves it and one kind of reference demands it."""

    prefix: str
    location: str
    key: str
    checksum: Checksum


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes that somebody wants, and the row of the answer they go to."""

    place: Place
    start: int
    length: int
    row: int


@dataclass(frozen=True, slots=True)
class Request:
    """Bytes to fetch, and the spans they serve."""

    start: int
    length: int
    spans: tuple[Span, ...]

    @property
    def place(self) -> Place:
        return self.spans[0].place


def coalesce(spans: Sequence[Span], *, gap: int = GAP, limit: int = LIMIT) -> list[Request]:
    """Requests that together cover all spans but the empty ones."""
    by_place: dict[Place, list[Span]] = {}
    for span in spans:
        if span.length:
            by_place.setdefault(span.place, []).append(span)
    return [
        request
        for group in by_place.values()
        for request in _join(sorted(group, key=lambda span: span.start), gap, limit)
    ]


def _join(spans: Sequence[Span], gap: int, limit: int) -> list[Request]:
    requests: list[Request] = []
    joined: list[Span] = []
    end = 0
    for span in spans:
        after = max(end, span.start + span.length)
        if joined and (span.start > end + gap or after - joined[0].start > limit):
            requests.append(_request(joined, end))
            joined, after = [], span.start + span.length
        joined.append(span)
        end = after
    return [*requests, _request(joined, end)]


def _request(spans: Sequence[Span], end: int) -> Request:
    return Request(spans[0].start, end - spans[0].start, tuple(spans))
