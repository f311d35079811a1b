"""Storage in this process's memory: for tests, and for repositories nobody needs to keep."""

from __future__ import annotations

import threading
import uuid
from bisect import bisect_right
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from icefloe.errors import InvalidInputError
from icefloe.storage.driver import Condition, Require
from icefloe.storage.failures import Failures
from icefloe.storage.handle import Backend, ObjectStorage
from icefloe.storage.protocol import Object, ObjectInfo, Version
from icefloe.storage.runners import Inline
from icefloe.storage.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class _Stored:
    data: bytes
    modified: datetime


class MemoryDriver:
    delete_batch = 1000

    def __init__(self, url: str) -> None:
        self._failures = Failures(url)
        self._objects: dict[str, _Stored] = {}
        self._lock = threading.Lock()

    async def read(self, key: str, *, known: Version | None) -> Object | None:
        data = self._stored(key).data
        version = Version.of(data)
        return None if version == known else Object(data, version)

    async def read_bytes(self, key: str) -> bytes:
        return self._stored(key).data

    async def read_range(self, key: str, start: int, length: int) -> bytes:
        return self._stored(key).data[start : start + length]

    async def write(
        self, key: str, data: bytes, *, condition: Condition, metadata: Mapping[str, str]
    ) -> Version:
        with self._lock:
            self._check(key, condition)
            self._objects[key] = _Stored(bytes(data), datetime.now(UTC))
        return Version.of(data)

    async def copy(self, source: str, target: str, *, expected: Version | None) -> None:
        with self._lock:
            stored = self._stored(source)
            if expected is not None:
                self._check(source, expected)
            self._objects[target] = stored

    def pages(self, prefix: str, start_after: str | None) -> _MemoryPages:
        keys = sorted(key for key in list(self._objects) if key.startswith(prefix))
        first = 0 if start_after is None else bisect_right(keys, start_after)
        return _MemoryPages(self._objects, keys[first:])

    async def info(self, key: str) -> ObjectInfo:
        stored = self._stored(key)
        return ObjectInfo(key, len(stored.data), stored.modified)

    async def delete(self, keys: Sequence[str]) -> Mapping[str, str]:
        with self._lock:
            for key in keys:
                self._objects.pop(key, None)
        return {}

    def _stored(self, key: str) -> _Stored:
        try:
            return self._objects[key]
        except KeyError:
            raise self._failures.not_found(key) from None

    def _check(self, key: str, condition: Condition) -> None:
        stored = self._objects.get(key)
        if condition is Require.ABSENCE and stored is not None:
            raise self._failures.conflict(key, "it exists")
        if isinstance(condition, Version):
            if stored is None:
                raise self._failures.conflict(key, "it does not exist")
            if Version.of(stored.data) != condition:
                raise self._failures.conflict(key, "it has changed")


class _MemoryPages:
    def __init__(self, objects: Mapping[str, _Stored], keys: Sequence[str]) -> None:
        self._objects = objects
        self._keys = keys
        self._done = 0

    async def next(self) -> list[ObjectInfo] | None:
        keys = self._keys[self._done : self._done + _PAGE]
        self._done += len(keys)
        # A key may be deleted while its listing is under way.
        stored = ((key, self._objects.get(key)) for key in keys)
        page = [ObjectInfo(key, len(it.data), it.modified) for key, it in stored if it is not None]
        return page if keys else None


_anonymous: WeakValueDictionary[str, MemoryDriver] = WeakValueDictionary()
_named: dict[str, MemoryDriver] = {}


def connect(settings: Settings) -> MemoryDriver:
    """The driver of an existing memory store.

    Raises:
        InvalidInputError: this process has none of that name: the URL or the pickle came from
            another process.
    """
    driver = _named.get(settings.url) or _anonymous.get(settings.url)
    if driver is None:
        raise InvalidInputError(
            f"{settings.url} lives in the memory of another process, or is gone",
            kind="memory-not-shared",
        )
    return driver


BACKEND = Backend(connect, Inline())


class MemoryStorage(ObjectStorage):
    """Lives in this process, as long as a handle on it does."""

    def __init__(self) -> None:
        url = f"memory://anonymous-{uuid.uuid4().hex}"
        driver = MemoryDriver(url)
        _anonymous[url] = driver
        super().__init__(Settings(url), BACKEND)
        # The registry holds it weakly: this handle keeps it alive.
        self._owned = driver


def open_named(settings: Settings) -> ObjectStorage:
    """A handle on the store of this name, made if need be; it lives as long as the process."""
    if settings.url not in _anonymous:
        _named.setdefault(settings.url, MemoryDriver(settings.url))
    return ObjectStorage(settings, BACKEND)
