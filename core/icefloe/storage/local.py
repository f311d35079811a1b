"""Storage in a directory of a POSIX file system: atomic, durable, safe for concurrent writers.

Objects are never changed in place. A new one is written to a temporary file beside its target,
synced, and then either *linked* to the target's name (all or nothing; it fails if the name is
taken) or *renamed* over it. Whoever replaces or deletes an existing object first takes `flock` on
that object's own inode, and then looks whether the name still means that inode. So all writes of
one key have one order, and no lock file is needed:

- the lock is on what is being replaced, so writers of different keys never wait for each other;
- the kernel drops it when its holder dies, kill -9 included;
- each attempt opens the file anew, and flock belongs to the open file: threads exclude each other
  as processes do;
- locking the root directory would leave no file either, but NFS and others lock a directory within
  one host only, and do not say so; a file opened for writing is locked on their server.

A killed writer can leave a temporary file. Its name cannot be a key, and listings pass it over.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from icefloe.errors import (
    InvalidInputError,
    NotFoundError,
    StorageError,
    UnknownOutcomeError,
    UnsafeStorageError,
)
from icefloe.storage.driver import Condition, Require
from icefloe.storage.failures import Failures
from icefloe.storage.files import (
    is_temporary,
    link,
    locked,
    make_folders,
    read_all,
    read_file,
    read_file_range,
    sync_folder,
    temporary_file,
    walk,
)
from icefloe.storage.handle import Backend
from icefloe.storage.protocol import Object, ObjectInfo, Version
from icefloe.storage.runners import Threads

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from icefloe.storage.files import Run
    from icefloe.storage.settings import Settings

_PAGE = 1000
_NO_LINKS_OR_LOCKS = frozenset({errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK})


class LocalDriver:
    delete_batch = 100

    def __init__(self, root: str, url: str) -> None:
        self._root = root
        self._failures = Failures(url)

    async def read(self, key: str, *, known: Version | None) -> Object | None:
        data = await self.read_bytes(key)
        version = Version.of(data)
        return None if version == known else Object(data, version)

    async def read_bytes(self, key: str) -> bytes:
        with self._reading(key):
            return read_file(self._path(key))

    async def read_range(self, key: str, start: int, length: int) -> bytes:
        with self._reading(key):
            return read_file_range(self._path(key), start, length)

    async def write(
        self, key: str, data: bytes, *, condition: Condition, metadata: Mapping[str, str]
    ) -> Version:
        path = self._path(key)
        folder = os.path.dirname(path)
        with self._writing(key):
            make_folders(folder)
            with temporary_file(folder, data) as written:
                self._place(key, written, path, condition)
        try:
            sync_folder(folder)
        except OSError as error:
            text = f"{self._failures.other(key, error)} - written, but perhaps not to the disk"
            raise UnknownOutcomeError(text) from error
        return Version.of(data)

    async def copy(self, source: str, target: str, *, expected: Version | None) -> None:
        data = await self.read_bytes(source)
        if expected is not None and Version.of(data) != expected:
            raise self._failures.conflict(source, "it has changed")
        await self.write(target, data, condition=Require.ANYTHING, metadata={})

    def pages(self, prefix: str, start_after: str | None) -> _LocalPages:
        return _LocalPages(self, walk(self._root, prefix, start_after))

    async def info(self, key: str) -> ObjectInfo:
        with self._reading(key):
            status = os.stat(self._path(key))
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError
        return _object_info(key, status)

    def status(self, key: str) -> os.stat_result:
        """Of a key that was found to be a file."""
        try:
            return os.stat(f"{self._root}/{key}")
        except OSError as error:
            with self._reading(key):
                raise error

    async def delete(self, keys: Sequence[str]) -> Mapping[str, str]:
        failures = {}
        folders = set()
        for key in keys:
            path = self._path(key)
            try:
                with self._reading(key), locked(path) as present:
                    if present is not None:
                        os.unlink(path)
                        folders.add(os.path.dirname(path))
            except NotFoundError:
                continue
            except StorageError as error:
                failures[key] = str(error)
        for folder in folders:
            with self._writing(folder):
                sync_folder(folder)
        return failures

    def _place(self, key: str, written: str, path: str, condition: Condition) -> None:
        """Give the file at `written` the name `path`, if the condition holds."""
        if isinstance(condition, Version):
            if not self._replace(key, written, path, condition):
                raise self._failures.conflict(key, "it does not exist")
            return
        while not link(written, path):
            if condition is Require.ABSENCE:
                raise self._failures.conflict(key, "it exists")
            if self._replace(key, written, path, None):
                return

    def _replace(self, key: str, written: str, path: str, expected: Version | None) -> bool:
        """Put the file at `written` in place of the one at `path`; False if there is none."""
        with locked(path) as present:
            if present is None:
                return False
            if expected is not None and Version.of(read_all(present)) != expected:
                raise self._failures.conflict(key, "it has changed")
            os.rename(written, path)
            return True

    def _path(self, key: str) -> str:
        if is_temporary(key):
            raise InvalidInputError(f"reserved for temporary files: {key!r}", kind="invalid-key")
        return f"{self._root}/{key}"

    @contextmanager
    def _reading(self, key: str) -> Iterator[None]:
        try:
            yield
        # A folder is no object, and neither is anything below an object.
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise self._failures.not_found(key) from None
        except OSError as error:
            raise self._translate(key, error) from error

    @contextmanager
    def _writing(self, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._translate(key, error) from error

    def _translate(self, key: str, error: OSError) -> StorageError:
        if error.errno in _NO_LINKS_OR_LOCKS:
            text = (
                f"{self._failures.other(key, error)} - this file system lacks hard links or locks"
            )
            return UnsafeStorageError(text)
        if isinstance(error, PermissionError):
            return self._failures.denied(key, error)
        return self._failures.other(key, error)


def _object_info(key: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, status.st_size, _modified(status))


def _modified(status: os.stat_result) -> datetime:
    return datetime.fromtimestamp(status.st_mtime, UTC)


class _LocalPages:
    def __init__(self, driver: LocalDriver, runs: Iterator[Run]) -> None:
        self._driver = driver
        self._pages = (
            run[start : start + _PAGE] for run in runs for start in range(0, len(run.names), _PAGE)
        )

    async def next(self) -> list[ObjectInfo] | None:
        for run in self._pages:
            if run.scan.is_current():
                return [_ListedFile(self._driver, run.base + name) for name in run.names]
            page = [*self._present(run)]
            if page:
                return page
        return None

    def _present(self, run: Run) -> Iterator[ObjectInfo]:
        """Those that were not deleted while the listing was under way."""
        for name in run.names:
            with suppress(NotFoundError):
                key = run.base + name
                yield _object_info(key, self._driver.status(key))


class _ListedFile(ObjectInfo):
    """Looks the file up when somebody asks for its size or time: most of a long listing is names.

    Raises NotFoundError then if the file is gone.
    """

    __slots__ = ("_driver", "_known")
    _driver: LocalDriver
    _known: os.stat_result

    def __init__(self, driver: LocalDriver, key: str) -> None:
        _set(self, "key", key)
        _set(self, "_driver", driver)

    # The base class has slots of these names, which stay empty.
    @property
    def size(self) -> int:
        return self._status.st_size

    @property
    def modified(self) -> datetime:
        return _modified(self._status)

    @property
    def _status(self) -> os.stat_result:
        status = getattr(self, "_known", None)
        if status is None:
            status = self._driver.status(self.key)
            _set(self, "_known", status)
        return status

    def _info(self) -> ObjectInfo:
        return _object_info(self.key, self._status)

    def __eq__(self, other: object) -> bool:
        return self._info() == (other._info() if isinstance(other, _ListedFile) else other)

    def __hash__(self) -> int:
        return hash(self._info())

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectInfo, (self.key, self.size, self.modified)


_set = object.__setattr__


def connect(settings: Settings) -> LocalDriver:
    root = settings.url.removeprefix("file://")
    if os.path.isfile(root):
        raise InvalidInputError(f"{root} is a file: a repository is a folder", kind="invalid-url")
    return LocalDriver(settings.url.removeprefix("file://"), settings.url)


BACKEND = Backend(connect, Threads())
