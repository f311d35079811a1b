"""The one handle on every store: the verbs, with checks, retries and twins, over a driver."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import batched
from typing import TYPE_CHECKING, Any

from icefloe.errors import InvalidInputError, NotFoundError, ReadOnlyError, StorageError
from icefloe.storage.conditional import write_if
from icefloe.storage.driver import Driver, Pages, Require
from icefloe.storage.keys import check_key, check_prefix
from icefloe.storage.protocol import (
    NO_METADATA,
    Contents,
    DeleteResult,
    Object,
    ObjectInfo,
    ObjectRange,
    Page,
    Version,
)
from icefloe.storage.runners import Slots

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence

    from icefloe.storage.protocol import MetadataOf
    from icefloe.storage.runners import Runner
    from icefloe.storage.settings import Settings


@dataclass(frozen=True, slots=True)
class Backend:
    """A kind of store; pickled by the import path of `connect`.

    Attributes:
        connect: makes a driver; does not block on the network.
        runner: where its coroutines run.
        refuses_writes: why this kind of store takes no writes; None if it does.
    """

    connect: Callable[[Settings], Driver]
    runner: Runner
    refuses_writes: str | None = None


class ObjectStorage:
    """A `Storage` on any backend."""

    def __init__(self, settings: Settings, backend: Backend) -> None:
        self._settings = settings
        self._backend = backend
        self._runner = backend.runner
        self._drivers: dict[int, Driver] = {}
        self._slots = Slots(settings.concurrency)

    @property
    def url(self) -> str:
        return self._settings.url

    @property
    def read_only(self) -> bool:
        return self._settings.read_only or self._backend.refuses_writes is not None

    def require_writable(self) -> None:
        if reason := self._backend.refuses_writes:
            raise ReadOnlyError(f"{self.url}: {reason}", kind="read-only-storage")
        if self._settings.read_only:
            raise ReadOnlyError(f"{self.url} was opened read-only", kind="read-only-storage")

    @property
    def unsafe_allow_no_preconditions(self) -> bool:
        return self._settings.unsafe_allow_no_preconditions

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectStorage, (self._settings.shareable(), self._backend)

    def get(self, key: str, *, known: Version | None = None) -> Object | None:
        return self._runner.run(self._get(key, known))

    async def get_async(self, key: str, *, known: Version | None = None) -> Object | None:
        return await self._runner.run_async(self._get(key, known))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._runner.run(self._get_range((key, start, length)))

    async def get_range_async(self, key: str, start: int, length: int) -> bytes:
        return await self._runner.run_async(self._get_range((key, start, length)))

    def get_ranges(self, ranges: Sequence[ObjectRange]) -> Contents:
        return self._runner.run(self._get_ranges(ranges))

    async def get_ranges_async(self, ranges: Sequence[ObjectRange]) -> Contents:
        return await self._runner.run_async(self._get_ranges(ranges))

    def get_many(self, keys: Sequence[str]) -> Contents:
        return self._runner.run(self._get_many(keys))

    async def get_many_async(self, keys: Sequence[str]) -> Contents:
        return await self._runner.run_async(self._get_many(keys))

    def put(self, key: str, data: bytes, *, metadata: Mapping[str, str] = NO_METADATA) -> Version:
        return self._runner.run(self._put(key, data, metadata))

    async def put_async(
        self, key: str, data: bytes, *, metadata: Mapping[str, str] = NO_METADATA
    ) -> Version:
        return await self._runner.run_async(self._put(key, data, metadata))

    def put_many(
        self, items: Sequence[tuple[str, bytes]], *, metadata: MetadataOf = NO_METADATA
    ) -> None:
        self._runner.run(self._put_many(items, metadata))

    async def put_many_async(
        self, items: Sequence[tuple[str, bytes]], *, metadata: MetadataOf = NO_METADATA
    ) -> None:
        await self._runner.run_async(self._put_many(items, metadata))

    def put_if(
        self,
        key: str,
        data: bytes,
        *,
        expected: Version | None,
        metadata: Mapping[str, str] = NO_METADATA,
    ) -> Version:
        return self._runner.run(self._put_if(key, data, expected, metadata))

    async def put_if_async(
        self,
        key: str,
        data: bytes,
        *,
        expected: Version | None,
        metadata: Mapping[str, str] = NO_METADATA,
    ) -> Version:
        return await self._runner.run_async(self._put_if(key, data, expected, metadata))

    def copy(self, source: str, target: str, *, expected: Version | None = None) -> None:
        self._runner.run(self._copy(source, target, expected))

    async def copy_async(
        self, source: str, target: str, *, expected: Version | None = None
    ) -> None:
        await self._runner.run_async(self._copy(source, target, expected))

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[Page]:
        pages = self._driver().pages(check_prefix(prefix), start_after)
        while (page := self._runner.run(self._next(pages, prefix))) is not None:
            yield page

    async def list_async(
        self, prefix: str = "", *, start_after: str | None = None
    ) -> AsyncIterator[Page]:
        pages = self._driver().pages(check_prefix(prefix), start_after)
        while (page := await self._runner.run_async(self._next(pages, prefix))) is not None:
            yield page

    def info(self, key: str) -> ObjectInfo:
        return self._runner.run(self._info(key))

    async def info_async(self, key: str) -> ObjectInfo:
        return await self._runner.run_async(self._info(key))

    def exists(self, key: str) -> bool:
        return self._runner.run(self._exists(key))

    async def exists_async(self, key: str) -> bool:
        return await self._runner.run_async(self._exists(key))

    def delete(self, keys: Sequence[str]) -> DeleteResult:
        return self._runner.run(self._delete(keys))

    async def delete_async(self, keys: Sequence[str]) -> DeleteResult:
        return await self._runner.run_async(self._delete(keys))

    # From here on, each verb once, as a coroutine for the runner.

    def _driver(self) -> Driver:
        # Sessions and sockets do not survive a fork, so there is one driver per process. The
        # parent's stays in the child's dictionary: collecting it there would close sockets that the
        # parent uses.
        pid = os.getpid()
        found = self._drivers.get(pid)
        # setdefault makes racing threads agree on one driver; a driver opens nothing before its
        # first request.
        return found or self._drivers.setdefault(pid, self._backend.connect(self._settings))

    async def _try[T](self, key: str, request: Callable[[], Awaitable[T]], *, sends: int = 0) -> T:
        async with self._slots.taken(self._runner):
            return await self._settings.retries.run(
                request,
                what=f"{key!r} in {self.url}",
                sends=sends,
                suspends=self._runner.suspends,
            )

    def _driver_for_write(self) -> Driver:
        self.require_writable()
        return self._driver()

    async def _get(self, key: str, known: Version | None) -> Object | None:
        check_key(key)
        driver = self._driver()
        return await self._try(key, lambda: driver.read(key, known=known))

    async def _get_bytes(self, key: str) -> bytes:
        check_key(key)
        driver = self._driver()
        return await self._try(key, lambda: driver.read_bytes(key))

    async def _get_range(self, wanted: ObjectRange) -> bytes:
        key, start, length = wanted
        check_key(key)
        if start < 0 or length < 0:
            raise InvalidInputError(f"not a range of {key!r}: start {start}, length {length}")
        if length == 0:
            return b""
        driver = self._driver()
        data = await self._try(key, lambda: driver.read_range(key, start, length))
        if len(data) != length:
            raise StorageError(
                f"{key!r} in {self.url}: bytes {start} to {start + length} were asked for, "
                f"and {len(data)} bytes came",
                kind="short-read",
            )
        return data

    async def _get_ranges(self, ranges: Sequence[ObjectRange]) -> Contents:
        return await self._runner.map(self._get_range, ranges, limit=self._settings.concurrency)

    async def _get_many(self, keys: Sequence[str]) -> Contents:
        return await self._runner.map(self._get_bytes, keys, limit=self._settings.concurrency)

    async def _put(self, key: str, data: bytes, metadata: Mapping[str, str]) -> Version:
        check_key(key)
        driver = self._driver_for_write()
        return await self._try(
            key,
            lambda: driver.write(key, data, condition=Require.ANYTHING, metadata=metadata),
            sends=len(data),
        )

    async def _put_many(self, items: Sequence[tuple[str, bytes]], metadata: MetadataOf) -> None:
        async def put(item: tuple[str, bytes]) -> None:
            await self._put(*item, metadata(item[0]) if callable(metadata) else metadata)

        await self._runner.map(put, items, limit=self._settings.concurrency)

    async def _put_if(
        self, key: str, data: bytes, expected: Version | None, metadata: Mapping[str, str]
    ) -> Version:
        check_key(key)
        driver = self._driver_for_write()
        async with self._slots.taken(self._runner):
            return await write_if(
                driver, self._settings.retries, key, data, expected=expected, metadata=metadata
            )

    async def _copy(self, source: str, target: str, expected: Version | None) -> None:
        check_key(source)
        check_key(target)
        driver = self._driver_for_write()
        await self._try(source, lambda: driver.copy(source, target, expected=expected))

    async def _next(self, pages: Pages, prefix: str) -> Page | None:
        return await self._try(prefix, pages.next)

    async def _info(self, key: str) -> ObjectInfo:
        check_key(key)
        driver = self._driver()
        return await self._try(key, lambda: driver.info(key))

    async def _exists(self, key: str) -> bool:
        try:
            await self._info(key)
        except NotFoundError as error:
            if error.kind != "object-not-found":
                raise
            return False
        return True

    async def _delete(self, keys: Sequence[str]) -> DeleteResult:
        driver = self._driver_for_write()
        unique = dict.fromkeys(map(check_key, keys))
        batches = [*batched(unique, driver.delete_batch)]

        async def delete(batch: Sequence[str]) -> Mapping[str, str]:
            return await self._try(batch[0], lambda: driver.delete(batch))

        failures: dict[str, str] = {}
        for failed in await self._runner.map(delete, batches, limit=self._settings.concurrency):
            failures.update(failed)
        return DeleteResult(len(unique) - len(failures), failures)
