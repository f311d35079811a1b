"""The verbs every store answers, and the values they speak in."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
    from datetime import datetime

NO_METADATA: Mapping[str, str] = {}

type MetadataOf = Mapping[str, str] | Callable[[str], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Version:
    """Names one state of one object; opaque, comparable only within its store and key.

    An ETag without quotes on S3 and Azure, a generation on GCS, a content hash elsewhere.
    """

    token: str

    @classmethod
    def of(cls, data: bytes) -> Version:
        """The version of an object in a store that has no versions of its own."""
        return cls(hashlib.sha256(data).hexdigest())


@dataclass(frozen=True, slots=True)
class Object:
    data: bytes
    version: Version


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a listing tells; `size` in bytes, `modified` in UTC by the store's own clock."""

    key: str
    size: int
    modified: datetime


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """`failures` maps each key that is still there to the store's reason.

    A key that was already missing counts as deleted.
    """

    deleted: int
    failures: Mapping[str, str] = field(default_factory=dict)


type ObjectRange = tuple[str, int, int]
"""Key, first byte, number of bytes."""

# The verb `list` hides the builtin inside the class below.
type Page = list[ObjectInfo]
type Contents = list[bytes]


class Storage(Protocol):
    """Objects under one root, addressed by relative keys such as `snapshots/ABC`.

    Every verb has an asynchronous twin that any event loop may await. A handle may be used from any
    thread, and from a forked child. Pickled, it carries its URL and options that are no secrets.

    Every verb may raise `StorageError` (`ThrottledError` and `PermissionDeniedError` among them)
    and `InvalidInputError` for a key that is no plain relative path; writes raise `ReadOnlyError`
    on a read-only handle. Messages name the key and the URL.
    """

    @property
    def url(self) -> str:
        """Where the root is, without secrets."""
        ...

    @property
    def read_only(self) -> bool: ...

    def require_writable(self) -> None:
        """Raises ReadOnlyError, which says why, if this handle takes no writes."""
        ...

    @property
    def unsafe_allow_no_preconditions(self) -> bool:
        """Whether the user accepted a store that may lose commits."""
        ...

    def get(self, key: str, *, known: Version | None = None) -> Object | None:
        """Read one object and its version, in one request; None if it is still at `known`.

        Raises:
            NotFoundError: there is no such object (kind `object-not-found`).
        """
        ...

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Read exactly `length` bytes.

        Raises:
            NotFoundError: there is no such object.
            StorageError: the object ends before the range does (kind `short-read`).
        """
        ...

    def get_ranges(self, ranges: Sequence[ObjectRange]) -> Contents:
        """Read many ranges at once, in the order given; the first failure is raised."""
        ...

    def get_many(self, keys: Sequence[str]) -> Contents:
        """Read many whole objects at once, in the order given; the first failure is raised."""
        ...

    def put(self, key: str, data: bytes, *, metadata: Mapping[str, str] = NO_METADATA) -> Version:
        """Write, whatever is there; atomic and durable: readers see the old object or the new."""
        ...

    def put_many(
        self, items: Sequence[tuple[str, bytes]], *, metadata: MetadataOf = NO_METADATA
    ) -> None:
        """Write many objects at once, each as `put` does; a failure may leave some written.

        The metadata is that of all of them, or a function from an object's key to its own.
        """
        ...

    def put_if(
        self,
        key: str,
        data: bytes,
        *,
        expected: Version | None,
        metadata: Mapping[str, str] = NO_METADATA,
    ) -> Version:
        """Write only if the object is still at `expected`; None means it must not exist.

        A lost answer is looked up, never guessed: returning means the write landed.

        Raises:
            ConflictError: the object now holds another write (kind `precondition-failed`).
            UnknownOutcomeError: the write may have landed, and the store does not say.
        """
        ...

    def copy(self, source: str, target: str, *, expected: Version | None = None) -> None:
        """Copy within the root, inside the store where it can.

        Raises:
            ConflictError: the source is no longer at `expected`; some stores do not check.
            NotFoundError: there is no such source.
        """
        ...

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[Page]:
        """Pages of the objects whose keys begin with `prefix`, in key order after `start_after`.

        A few stores (SeaweedFS, S3 directory buckets) order by folder instead. Within one folder
        the two agree.
        """
        ...

    def info(self, key: str) -> ObjectInfo:
        """What is known of one object without reading it.

        Raises:
            NotFoundError: there is no such object.
        """
        ...

    def exists(self, key: str) -> bool: ...

    def delete(self, keys: Sequence[str]) -> DeleteResult:
        """Delete many objects; a key's failure is reported in the result, not raised."""
        ...

    async def get_async(self, key: str, *, known: Version | None = None) -> Object | None: ...

    async def get_range_async(self, key: str, start: int, length: int) -> bytes: ...

    async def get_ranges_async(self, ranges: Sequence[ObjectRange]) -> Contents: ...

    async def get_many_async(self, keys: Sequence[str]) -> Contents: ...

    async def put_async(
        self, key: str, data: bytes, *, metadata: Mapping[str, str] = NO_METADATA
    ) -> Version: ...

    async def put_many_async(
        self, items: Sequence[tuple[str, bytes]], *, metadata: MetadataOf = NO_METADATA
    ) -> None: ...

    async def put_if_async(
        self,
        key: str,
        data: bytes,
        *,
        expected: Version | None,
        metadata: Mapping[str, str] = NO_METADATA,
    ) -> Version: ...

    async def copy_async(
        self, source: str, target: str, *, expected: Version | None = None
    ) -> None: ...

    def list_async(
        self, prefix: str = "", *, start_after: str | None = None
    ) -> AsyncIterator[Page]: ...

    async def info_async(self, key: str) -> ObjectInfo: ...

    async def exists_async(self, key: str) -> bool: ...

    async def delete_async(self, keys: Sequence[str]) -> DeleteResult: ...
