"""Any other URL that fsspec reads (zip, github, sftp, chained ones): read-only.

Nothing is known of what these stores promise, and a commit needs promises.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import fsspec
from fsspec.core import url_to_fs

from icefloe.errors import IcefloeError, InvalidInputError
from icefloe.storage.failures import Failures
from icefloe.storage.handle import Backend
from icefloe.storage.protocol import Object, ObjectInfo, Version
from icefloe.storage.read_only import ReadOnlyDriver
from icefloe.storage.runners import Threads
from icefloe.storage.settings import Settings, secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PAGE = 1000
_MODIFIED_NAMES = ("mtime", "modified", "LastModified", "last_modified", "created")


REFUSAL = (
    "fsspec reads this scheme, but nothing is known of conditional writes there, "
    "so it is read-only. Write to file://, s3://, gs:// or az://"
)


class ForeignDriver(ReadOnlyDriver):
    refusal = REFUSAL

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings.url)
        options = settings.resolve()
        self._failures = Failures(settings.url, secrets(options))
        try:
            self._fs, root = url_to_fs(settings.url, **options, skip_instance_cache=True)
        # TypeError: of an option that the file system does not have.
        except (ImportError, ValueError, TypeError, OSError) as error:
            shown = self._failures.other("", error)
            raise InvalidInputError(
                f"fsspec cannot open {settings.url}: {shown}", kind="invalid-url"
            ) from self._failures.without_secrets(error)
        self._root = root.rstrip("/")

    async def read(self, key: str, *, known: Version | None) -> Object | None:
        data = await self.read_bytes(key)
        version = Version.of(data)
        return None if version == known else Object(data, version)

    async def read_bytes(self, key: str) -> bytes:
        data: bytes = self._ask(key, self._fs.cat_file, self._path(key))
        return data

    async def read_range(self, key: str, start: int, length: int) -> bytes:
        path = self._path(key)
        data: bytes = self._ask(key, self._fs.cat_file, path, start=start, end=start + length)
        # A web server may ignore the range.
        return data[start : start + length] if len(data) > length else data

    def pages(self, prefix: str, start_after: str | None) -> _ForeignPages:
        return _ForeignPages(self, prefix, start_after or "")

    def find(self, prefix: str) -> list[ObjectInfo]:
        """Everything below the deepest folder of `prefix`: fsspec knows no pages."""
        folder = self._path(prefix.rpartition("/")[0]).rstrip("/")
        try:
            found = self._ask(prefix, self._fs.find, folder, detail=True)
        except IcefloeError as error:
            if error.kind == "object-not-found":
                return []
            raise
        above = len(self._root) + 1 if self._root else 0
        return [_info(path[above:], details) for path, details in found.items()]

    async def info(self, key: str) -> ObjectInfo:
        details = self._ask(key, self._fs.info, self._path(key))
        if details.get("type") == "directory":
            raise self._failures.not_found(key)
        return _info(key, details)

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}" if self._root else key

    def _ask(self, key: str, verb: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        try:
            return verb(*arguments, **named)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError, KeyError):
            raise self._failures.not_found(key) from None
        except PermissionError as error:
            translated: IcefloeError = self._failures.denied(key, error)
            raise translated from self._failures.without_secrets(error)
        except (OSError, ConnectionError, fsspec.exceptions.FSTimeoutError) as error:
            raise self._failures.transport(key, error) from self._failures.without_secrets(error)
        # Each file system has exceptions of its own; none may pass with a secret in it.
        except Exception as error:
            raise self._failures.other(key, error) from self._failures.without_secrets(error)


class _ForeignPages:
    def __init__(self, driver: ForeignDriver, prefix: str, start_after: str) -> None:
        self._driver = driver
        self._prefix = prefix
        self._start_after = start_after
        self._waiting: list[ObjectInfo] | None = None

    async def next(self) -> list[ObjectInfo] | None:
        if self._waiting is None:
            wanted = [
                info
                for info in self._driver.find(self._prefix)
                if info.key.startswith(self._prefix) and info.key > self._start_after
            ]
            self._waiting = sorted(wanted, key=lambda info: info.key)
        page, self._waiting = self._waiting[:_PAGE], self._waiting[_PAGE:]
        return page or None


def _info(key: str, details: Mapping[str, Any]) -> ObjectInfo:
    return ObjectInfo(key, int(details.get("size") or 0), _modified(details))


def _modified(details: Mapping[str, Any]) -> datetime:
    for name in _MODIFIED_NAMES:
        match details.get(name):
            case datetime() as when:
                return when if when.tzinfo else when.replace(tzinfo=UTC)
            case int() | float() as seconds:
                return datetime.fromtimestamp(seconds, UTC)
    # Unknown must not look old: garbage collection deletes what is old.
    return datetime.now(UTC)


BACKEND = Backend(ForeignDriver, Threads(), refuses_writes=REFUSAL)
