"""Opening HDF5 files where they are: on this host, or in an object store by ranges of bytes."""

from __future__ import annotations

import io
import os
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import h5py

from icefloe.errors import InvalidInputError, NotFoundError
from icefloe.spark.virtualizing_staging import root_of
from icefloe.virtual.locations import object_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from icefloe.storage.protocol import Storage

    type Buffer = bytearray | memoryview

_BLOCK = 2**20
_BLOCKS = 64
"""Metadata lies all over a file: this many blocks of it are kept."""
_NANOSECONDS = 10**9


@dataclass(frozen=True, slots=True)
class OpenFile:
    location: str
    file: h5py.File
    modified: int
    """Seconds since the epoch, rounded up: the file was not changed after that."""


@contextmanager
def open_hdf5(location: str, storages: Mapping[str, Storage]) -> Iterator[OpenFile]:
    """Open the file at a normal location.

    Args:
        location: see `icefloe.virtual.locations`.
        storages: by root, where to find what is not on this host.

    Raises:
        InvalidInputError: it is no HDF5 file.
        NotFoundError: there is none.
    """
    key, root = object_key(location), root_of(location)
    if root == "file://":
        modified = -(-_stat(key, location).st_mtime_ns // _NANOSECONDS)
        with _checked(location, lambda: h5py.File(key, "r", locking=False)) as file:
            yield OpenFile(location, file, modified)
        return
    storage = storages[root]
    info = storage.info(key)
    source = _Remote(info.size, lambda start, length: storage.get_range(key, start, length))
    with _checked(location, lambda: h5py.File(source, "r")) as file:
        yield OpenFile(location, file, -int(-info.modified.timestamp() // 1))


def _checked(location: str, connect: Callable[[], h5py.File]) -> h5py.File:
    try:
        return connect()
    except OSError as error:
        raise InvalidInputError(
            f"{location} cannot be read as HDF5 or NetCDF 4: {error}", kind="invalid-hdf5"
        ) from error


def _stat(path: str, location: str) -> os.stat_result:
    try:
        return os.stat(path)
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {location}", kind="object-not-found") from None


class _Remote(io.RawIOBase):
    """A file of which blocks are read when they are asked for, and kept for a while."""

    def __init__(self, size: int, read: Callable[[int, int], bytes]) -> None:
        self._size = size
        self._at = 0

        def block(number: int) -> bytes:
            start = number * _BLOCK
            return read(start, min(_BLOCK, size - start))

        self._block = lru_cache(maxsize=_BLOCKS)(block)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def readinto(self, target: Buffer) -> int:  # type: ignore[override]
        number, skip = divmod(self._at, _BLOCK)
        if self._at >= self._size:
            return 0
        part = self._block(number)[skip : skip + len(target)]
        target[: len(part)] = part
        self._at += len(part)
        return len(part)
