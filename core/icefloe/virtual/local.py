"""Virtual chunks in files of this host."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from icefloe.storage.failures import Failures
from icefloe.storage.runners import Threads
from icefloe.virtual.source import Kind

if TYPE_CHECKING:
    from icefloe.config import VirtualChunkContainer
    from icefloe.storage.settings import Settings
    from icefloe.virtual.checksum import Checksum


class LocalSource:
    def __init__(self, url: str) -> None:
        self._failures = Failures(url)

    async def fetch(self, key: str, start: int, length: int, checksum: Checksum) -> bytes:
        try:
            data, found = _read(key, start, length)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise self._failures.not_found(key) from None
        except PermissionError as error:
            raise self._failures.denied(key, error) from error
        except OSError as error:
            raise self._failures.other(key, error) from error
        checksum.verify(etag=etag(found), modified=found.st_mtime_ns / 1e9)
        return data


def etag(found: os.stat_result) -> str:
    """The ETag that the object_store crate gives a file."""
    return f"{found.st_ino:x}-{found.st_mtime_ns // 1000:x}-{found.st_size:x}"


def _read(path: str, start: int, length: int) -> tuple[bytes, os.stat_result]:
    parts = []
    with open(path, "rb", buffering=0) as file:
        # One call stops short at 2 GiB, or at a signal.
        while length and (data := os.pread(file.fileno(), length, start)):
            parts.append(data)
            start, length = start + len(data), length - len(data)
        # Asked after reading, so that a change in between shows.
        return b"".join(parts), os.fstat(file.fileno())


def _connect(container: VirtualChunkContainer, settings: Settings) -> LocalSource:
    return LocalSource(container.url_prefix)


KIND = Kind(_connect, Threads())
