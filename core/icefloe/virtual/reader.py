"""Reading virtual chunks: only from containers that the reader trusts, and never changed objects.

Every failure is an error that names the location. None is a `NotFoundError`: a missing source is no
missing chunk, which would read as fill values.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from icefloe.errors import (
    ConflictError,
    IcefloeError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)
from icefloe.storage.runners import Slots
from icefloe.storage.settings import Settings, with_deadline
from icefloe.virtual.checksum import MODIFIED, Checksum
from icefloe.virtual.containers import Containers
from icefloe.virtual.locations import normalize, object_key
from icefloe.virtual.ranges import Place, Request, Span, coalesce
from icefloe.virtual.source import Source, kind_of

if TYPE_CHECKING:
    from icefloe.config import VirtualChunkContainer
    from icefloe.format.chunk_refs import VirtualRef
    from icefloe.storage.retry import Retries

type Grant = Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None
"""Storage options of the container's kind of store, a function that gives them, or nothing."""


class VirtualReader:
    """Reads virtual chunks from the authorized containers.

    May be used from any thread, event loop, or forked child. Pickled, it carries no secrets: of
    options, those known to be public; of functions, their import path.
    """

    def __init__(
        self,
        containers: Mapping[str, VirtualChunkContainer] | None,
        authorized: Mapping[str, Grant] | None = None,
        *,
        retries: Retries | None = None,
        concurrency: int = 64,
    ) -> None:
        """Nothing is opened before the first read.

        Args:
            containers: those of the repository's configuration.
            authorized: which of them may be read, by prefix or by name, and with what credentials.
                A name means whatever prefix the repository's configuration gives it.
            retries: for throttling and broken connections.
            concurrency: how many requests one call may have under way.
        """
        self._containers = {each.url_prefix: each for each in (containers or {}).values()}
        self.containers = Containers(self._containers)
        self._grants = {
            key: _granted(key, grant, retries, concurrency)
            for key, grant in (authorized or {}).items()
        }
        self._sources: dict[tuple[int, str], Source] = {}
        self._slots = Slots(concurrency)

    def __reduce__(self) -> tuple[Any, ...]:
        grants = {key: settings.shareable() for key, settings in self._grants.items()}
        return _rebuild, (self._containers, grants)

    async def read(self, ref: VirtualRef, start: int = 0, length: int | None = None) -> bytes:
        """Exactly `length` bytes of a chunk, counted from its own beginning; by default the rest.

        Raises:
            InvalidInputError: no container has the location (`no-container-for-virtual-chunk`), or
                the reader did not authorize it (`unauthorized-virtual-chunk-container`).
            StorageError: the object has changed (`virtual-chunk-modified`), is missing or too short
                (`virtual-chunk-fetch`), or the store failed.
        """
        wanted = ref.length - start if length is None else length
        (data,) = await self.read_many([(ref, start, wanted)])
        return data

    async def read_many(self, wanted: Sequence[tuple[VirtualRef, int, int]]) -> list[bytes]:
        """`read` for many chunks, in order; neighbouring ranges of an object are read at once."""
        spans = [self._span(row, *item) for row, item in enumerate(wanted)]
        by_container: dict[str, list[Request]] = defaultdict(list)
        for request in coalesce(spans):
            by_container[request.place.prefix].append(request)
        results = [b""] * len(spans)
        for prefix, requests in by_container.items():
            for request, data in zip(requests, await self._fetch(prefix, requests), strict=True):
                for span in request.spans:
                    first = span.start - request.start
                    results[span.row] = data[first : first + span.length]
        return results

    def _span(self, row: int, ref: VirtualRef, start: int, length: int) -> Span:
        if start < 0 or length < 0 or start + length > ref.length:
            raise InvalidInputError(
                f"bytes {start} to {start + length} are not in a chunk of {ref.length} bytes",
                kind="invalid-byte-range",
            )
        container, location = self.containers.find(_normal(ref.location))
        self._settings(container, location)
        place = Place(
            container.url_prefix,
            location,
            object_key(location),
            Checksum(ref.checksum_etag, ref.checksum_last_modified),
        )
        return Span(place, ref.offset + start, length, row)

    def _settings(self, container: VirtualChunkContainer, location: str) -> Settings:
        for key in (container.url_prefix, container.name):
            if key is not None and key in self._grants:
                return self._grants[key]
        raise InvalidInputError(
            f"{location!r} is in the virtual chunk container {container.url_prefix!r}, which this "
            "reader has not authorized: pass authorize_virtual_chunk_access="
            f"{{{container.url_prefix!r}: None}}, or its credentials instead of None",
            kind="unauthorized-virtual-chunk-container",
        )

    async def _fetch(self, prefix: str, requests: Sequence[Request]) -> list[bytes]:
        container = self._containers[prefix]
        settings = self._settings(container, requests[0].place.location)
        runner = kind_of(container).runner
        source = self._source(container, settings)

        async def fetch(request: Request) -> bytes:
            place = request.place
            try:
                async with self._slots.taken(runner):
                    data = await settings.retries.run(
                        lambda: source.fetch(
                            place.key, request.start, request.length, place.checksum
                        ),
                        what="its store",
                        suspends=runner.suspends,
                    )
            except (ConflictError, NotFoundError, StorageError) as error:
                raise _located(error, place.location) from error
            if len(data) < request.length:
                end = request.start + request.length
                text = f"bytes {request.start} to {end} were asked for, and {len(data)} came"
                raise _located(StorageError(text, kind="virtual-chunk-fetch"), place.location)
            return data

        return await runner.run_async(runner.map(fetch, requests, limit=settings.concurrency))

    def _source(self, container: VirtualChunkContainer, settings: Settings) -> Source:
        # Sessions and sockets do not survive a fork; see ObjectStorage.
        key = (os.getpid(), container.url_prefix)
        found = self._sources.get(key)
        connect = kind_of(container).connect
        return found or self._sources.setdefault(key, connect(container, settings))


def _granted(key: str, grant: Grant, retries: Retries | None, concurrency: int) -> Settings:
    options, retries = with_deadline(grant if isinstance(grant, Mapping) else None, retries)
    return Settings(
        url=key,
        options=options,
        credentials=grant if callable(grant) else None,
        read_only=True,
        retries=retries,
        concurrency=concurrency,
    )


def _normal(location: str) -> str:
    # A path may not lead out of its container by its spelling. Other locations count as they are,
    # whatever their writer took for one.
    return normalize(location) if location.startswith("file:") else location


def _located(error: IcefloeError, location: str) -> StorageError:
    text = f"virtual chunk in {location!r}: {error}"
    match error:
        case ConflictError():
            return StorageError(text, kind=MODIFIED)
        case StorageError():
            return type(error)(text, kind=error.kind)
        case _:
            return StorageError(text, kind="virtual-chunk-fetch")


def _rebuild(
    containers: Mapping[str, VirtualChunkContainer], grants: Mapping[str, Settings]
) -> VirtualReader:
    reader = VirtualReader(containers)
    reader._grants = dict(grants)
    return reader
