"""What a backend implements: single requests, no retries, failures already translated.

A driver raises `NotFoundError`, `ConflictError` and the `StorageError` family only. The `kind` of a
failure says what may be done about it: see `retry.RETRYABLE` and `retry.AMBIGUOUS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from icefloe.storage.protocol import Object, ObjectInfo, Version

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Require(Enum):
    ANYTHING = "anything"
    ABSENCE = "absence"


type Condition = Version | Require
"""What a write demands of the object it replaces; a version must be the present one."""


@dataclass(frozen=True, slots=True)
class Head:
    """An object without its bytes; metadata names in lower case, whatever the store does."""

    info: ObjectInfo
    version: Version
    metadata: Mapping[str, str]


class Pages(Protocol):
    async def next(self) -> list[ObjectInfo] | None:
        """The next page, None at the end; after a failure, calling again asks for the same page."""
        ...


class Driver(Protocol):
    @property
    def delete_batch(self) -> int:
        """How many keys one `delete` takes."""
        ...

    async def read(self, key: str, *, known: Version | None) -> Object | None: ...

    async def read_bytes(self, key: str) -> bytes: ...

    async def read_range(self, key: str, start: int, length: int) -> bytes:
        """At most `length` bytes: fewer where the object ends."""
        ...

    async def write(
        self, key: str, data: bytes, *, condition: Condition, metadata: Mapping[str, str]
    ) -> Version: ...

    async def copy(self, source: str, target: str, *, expected: Version | None) -> None: ...

    def pages(self, prefix: str, start_after: str | None) -> Pages: ...

    async def info(self, key: str) -> ObjectInfo: ...

    async def delete(self, keys: Sequence[str]) -> Mapping[str, str]:
        """Delete up to `delete_batch` keys; returns the reasons of those that failed."""
        ...


@runtime_checkable
class RemoteDriver(Driver, Protocol):
    """With a network in between: a write that seems to have failed may have landed: look."""

    async def head(self, key: str) -> Head: ...
