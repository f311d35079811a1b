"""Typed files: the objects of a repository, fetched, cached and stored under their keys."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from itertools import batched
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from icefloe.caching import ByteCache
from icefloe.errors import ConflictError, FormatError, InternalError, NotFoundError
from icefloe.format import header, manifest, repo_info, snapshot, transaction_log
from icefloe.format.header import FileType

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from icefloe.format.ids import ChunkId, ManifestId, ObjectId, SnapshotId
    from icefloe.format.manifest import Manifest
    from icefloe.format.repo_info import RepoInfo
    from icefloe.format.snapshot import Snapshot
    from icefloe.format.transaction_log import TransactionLog
    from icefloe.storage import Storage, Version

REPO = "repo"
MANIFEST_CACHE_BYTES = 256 * 2**20
SNAPSHOT_CACHE_BYTES = 64 * 2**20
_DECODED = 8
"""A decoded file takes about this many times the bytes of the compressed one."""
_READ_AHEAD = 32
"""Manifests fetched at once while a series of them is read."""


_FILE_TYPES = {
    "snapshots": "snapshot",
    "transactions": "transaction-log",
    "manifests": "manifest",
    "overwritten": "repo-info",
    REPO: "repo-info",
}

type File = tuple[str, bytes]
"""A key, and what is to be stored there."""


def _object_metadata(key: str) -> dict[str, str]:
    """What the official client writes beside its metadata files; nobody reads it to decide."""
    return {
        "icspecver": "2",
        "icclient": header.IMPLEMENTATION,
        "icfiletype": _FILE_TYPES[key.partition("/")[0]],
        "iccompalg": "zstd",
    }


@dataclass(frozen=True, slots=True, eq=False)
class KnownRepo:
    """A repo object that was read or written some time ago: `at` is in monotonic seconds."""

    info: RepoInfo
    version: Version
    data: bytes
    at: float


class Assets:
    """The files of one repository. Everything but the repo object is immutable once written."""

    def __init__(
        self,
        storage: Storage,
        *,
        level: int = 3,
        manifest_cache_bytes: int = MANIFEST_CACHE_BYTES,
    ) -> None:
        self.storage = storage
        self.level = level
        self._manifest_cache_bytes = manifest_cache_bytes
        self.known_repo: KnownRepo | None = None
        """The repo object as it was last met here; others may have replaced it since."""
        self._snapshots: ByteCache[Snapshot] = ByteCache(SNAPSHOT_CACHE_BYTES)
        self._payloads: ByteCache[bytes] = ByteCache(manifest_cache_bytes)
        # By event loop: a task can be awaited only in its own.
        self._fetching: WeakKeyDictionary[
            asyncio.AbstractEventLoop, dict[str, asyncio.Task[bytes]]
        ] = WeakKeyDictionary()

    def __reduce__(self) -> tuple[Any, ...]:
        # What is cached can be fetched again where the pickle lands.
        return _rebuild, (self.storage, self.level, self._manifest_cache_bytes)

    def repo(self) -> tuple[RepoInfo, Version]:
        """The repo object as it is now, and its version.

        Raises:
            NotFoundError: there is no repository here.
        """
        known = self.known_repo
        found = self.storage.get(REPO, known=known.version if known else None)
        if found is not None:
            info = repo_info.decode(found.data, name=REPO)
            known = KnownRepo(info, found.version, found.data, time.monotonic())
        elif known is None:
            raise InternalError("the storage answered 'unchanged' to an unconditional read")
        self.known_repo = replace(known, at=time.monotonic())
        return known.info, known.version

    def swap_repo(self, info: RepoInfo, *, expected: Version | None) -> Version:
        """Replace the repo object if it is still at `expected`; None creates it.

        Raises:
            InternalError: nobody could read what was to be written; nothing was.
        """
        data = repo_info.encode(info)
        try:
            written = repo_info.decode(data, name=REPO)
        except FormatError as error:
            raise InternalError(f"the new repo object cannot be read: {error}") from error
        metadata = _object_metadata(REPO)
        version = self.storage.put_if(REPO, data, expected=expected, metadata=metadata)
        # Decoding was no waste: the next reader need not do it again.
        self.known_repo = KnownRepo(written, version, data, time.monotonic())
        return version

    def back_up_repo(self, name: str, *, expected: Version) -> None:
        """Copy the repo object aside before it is replaced."""
        self.storage.copy(REPO, f"overwritten/{name}", expected=expected)

    def backup(self, name: str) -> RepoInfo | None:
        """An older repo object, None if somebody removed it."""
        key = f"overwritten/{name}"
        try:
            return repo_info.decode(self._read(key), name=key)
        except NotFoundError:
            return None

    def snapshot(self, snapshot_id: SnapshotId) -> Snapshot:
        key = f"snapshots/{snapshot_id}"
        cached = self._snapshots.get(key)
        if cached is not None:
            return cached
        return self._decoded_snapshot(snapshot_id, self._read(key))

    def _decoded_snapshot(self, snapshot_id: SnapshotId, data: bytes) -> Snapshot:
        key = f"snapshots/{snapshot_id}"
        value = snapshot.decode(data, name=key)
        _check_id(key, value.id, snapshot_id)
        self._snapshots.put(key, value, _DECODED * len(data))
        return value

    def snapshot_file(self, value: Snapshot) -> File:
        return f"snapshots/{value.id}", snapshot.encode(value, level=self.level)

    def put_snapshot(self, value: Snapshot) -> None:
        self.put_files([self.snapshot_file(value)])

    def transaction_log(self, snapshot_id: SnapshotId) -> TransactionLog:
        key = f"transactions/{snapshot_id}"
        return transaction_log.decode(self._read(key), name=key)

    def transaction_logs(self, ids: Sequence[SnapshotId]) -> list[TransactionLog]:
        """Many logs, in the order given."""
        keys = [f"transactions/{item}" for item in ids]
        found = self.storage.get_many(keys)
        return [
            transaction_log.decode(data, name=key) for key, data in zip(keys, found, strict=True)
        ]

    def snapshot_and_logs(
        self, snapshot_id: SnapshotId, logs: Sequence[SnapshotId]
    ) -> tuple[Snapshot, list[TransactionLog]]:
        """A snapshot and any logs, in one round trip."""
        key = f"snapshots/{snapshot_id}"
        cached = self._snapshots.get(key)
        if cached is not None:
            return cached, self.transaction_logs(logs)
        keys = [f"transactions/{item}" for item in logs]
        data, *found = self.storage.get_many([key, *keys])
        decoded = [
            transaction_log.decode(it, name=name) for name, it in zip(keys, found, strict=True)
        ]
        return self._decoded_snapshot(snapshot_id, data), decoded

    def log_file(self, log: TransactionLog) -> File:
        return f"transactions/{log.id}", transaction_log.encode(log, level=self.level)

    def put_transaction_log(self, log: TransactionLog) -> None:
        self.put_files([self.log_file(log)])

    def put_files(self, files: Sequence[File]) -> None:
        """Write metadata files, all at once."""
        self.storage.put_many(files, metadata=_object_metadata)

    def create_file(self, file: File) -> bool:
        """Write a metadata file unless there is one already; whether it was written."""
        key, data = file
        try:
            self.storage.put_if(key, data, expected=None, metadata=_object_metadata(key))
        except ConflictError:
            return False
        return True

    def manifest(self, manifest_id: ManifestId) -> Manifest:
        (found,) = self.manifests([manifest_id])
        return found

    def manifests(self, ids: Sequence[ManifestId]) -> Iterator[Manifest]:
        """Many manifests in the order given, some fetched ahead."""
        for batch in batched(ids, _READ_AHEAD):
            keys = [f"manifests/{item}" for item in batch]
            for key, wanted, data in zip(keys, batch, self.storage.get_many(keys), strict=True):
                value = manifest.decode(data, name=key)
                _check_id(key, value.id, wanted)
                yield value

    async def manifest_payload(self, manifest_id: ManifestId) -> bytes:
        """A manifest decompressed but not decoded: enough to look single chunks up.

        Readers that ask for one manifest at the same time share one request.
        """
        key = f"manifests/{manifest_id}"
        cached = self._payloads.get(key)
        if cached is not None:
            return cached
        fetching = self._fetching.setdefault(asyncio.get_running_loop(), {})
        task = fetching.get(key)
        if task is None:
            task = fetching[key] = asyncio.create_task(self._fetch_payload(key))
            task.add_done_callback(lambda _: fetching.pop(key, None))
        return await asyncio.shield(task)

    async def _fetch_payload(self, key: str) -> bytes:
        (data,) = await self.storage.get_many_async([key])
        return self._unpacked(key, data)

    def manifest_payload_sync(self, manifest_id: ManifestId) -> bytes:
        """`manifest_payload`, blocking."""
        key = f"manifests/{manifest_id}"
        cached = self._payloads.get(key)
        return self._unpacked(key, self._read(key)) if cached is None else cached

    def fetch_payloads(self, ids: Sequence[ManifestId]) -> None:
        """Put the payloads of manifests into the cache, those that are not there."""
        keys = [f"manifests/{item}" for item in ids]
        missing = [key for key in keys if self._payloads.get(key) is None]
        for key, data in zip(missing, self.storage.get_many(missing), strict=True):
            self._unpacked(key, data)

    def _unpacked(self, key: str, data: bytes) -> bytes:
        _, payload = header.unpack(data, FileType.MANIFEST, name=key)
        self._payloads.put(key, payload, len(payload))
        return payload

    async def manifest_async(self, manifest_id: ManifestId) -> Manifest:
        payload = await self.manifest_payload(manifest_id)
        return manifest.decode_payload(payload, name=f"manifests/{manifest_id}")

    def put_manifest(self, value: Manifest) -> int:
        """Write a manifest; the size of its file."""
        data = manifest.encode(value, level=self.level)
        self.put_manifests([(value.id, data)])
        return len(data)

    def put_manifests(self, files: Sequence[tuple[ManifestId, bytes]]) -> None:
        """Write manifests that are encoded already."""
        self.put_files([(f"manifests/{manifest_id}", data) for manifest_id, data in files])

    async def put_chunk(self, chunk_id: ChunkId, data: bytes) -> None:
        await self.storage.put_async(f"chunks/{chunk_id}", data)

    def put_chunks(self, items: Sequence[tuple[ChunkId, bytes]]) -> None:
        self.storage.put_many([(f"chunks/{chunk_id}", data) for chunk_id, data in items])

    def _read(self, key: str) -> bytes:
        (data,) = self.storage.get_many([key])
        return data


def _rebuild(storage: Storage, level: int, manifest_cache_bytes: int) -> Assets:
    return Assets(storage, level=level, manifest_cache_bytes=manifest_cache_bytes)


def _check_id(key: str, found: ObjectId, wanted: ObjectId) -> None:
    if found != wanted:
        raise FormatError(f"{key} holds {found!r}", kind="id-mismatch")
