"""Typed files: the objects of a repository, fetched, cached and stored under their keys."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from icefloe.errors import FormatError, InternalError, NotFoundError
from icefloe.format import header, manifest, repo_info, snapshot, transaction_log

if TYPE_CHECKING:
    from icefloe.format.chunk_refs import NativeRef
    from icefloe.format.ids import ChunkId, ManifestId, SnapshotId
    from icefloe.format.manifest import Manifest
    from icefloe.format.repo_info import RepoInfo
    from icefloe.format.snapshot import Snapshot
    from icefloe.format.transaction_log import TransactionLog
    from icefloe.storage import Storage, Version

REPO = "repo"
MANIFEST_CACHE_BYTES = 256 * 2**20


def _object_metadata(file_type: str) -> dict[str, str]:
    """What the official client writes beside its metadata files; nobody reads it to decide."""
    return {
        "icspecver": "2",
        "icclient": header.IMPLEMENTATION,
        "icfiletype": file_type,
        "iccompalg": "zstd",
    }


class Assets:
    """The files of one repository. Everything but the repo object is immutable once written."""

    def __init__(self, storage: Storage, *, level: int = 3) -> None:
        self.storage = storage
        self.level = level
        self._manifests = _Cache(MANIFEST_CACHE_BYTES)

    def __reduce__(self) -> tuple[Any, ...]:
        # What is cached can be fetched again where the pickle lands.
        return _rebuild, (self.storage, self.level)

    def repo(self) -> tuple[RepoInfo, Version]:
        """The repo object and its version.

        Raises:
            NotFoundError: there is no repository here.
        """
        found = self.storage.get(REPO)
        if found is None:
            raise InternalError("the storage answered 'unchanged' to an unconditional read")
        return repo_info.decode(found.data, name=REPO), found.version

    def swap_repo(self, info: RepoInfo, *, expected: Version | None) -> Version:
        """Replace the repo object if it is still at `expected`; None creates it."""
        data = repo_info.encode(info)
        metadata = _object_metadata("repo-info")
        return self.storage.put_if(REPO, data, expected=expected, metadata=metadata)

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
        value = snapshot.decode(self._read(key), name=key)
        if value.id != snapshot_id:
            raise FormatError(f"{key} holds snapshot {value.id}", kind="id-mismatch")
        return value

    def put_snapshot(self, value: Snapshot) -> None:
        data = snapshot.encode(value, level=self.level)
        self.storage.put(f"snapshots/{value.id}", data, metadata=_object_metadata("snapshot"))

    def transaction_log(self, snapshot_id: SnapshotId) -> TransactionLog:
        key = f"transactions/{snapshot_id}"
        return transaction_log.decode(self._read(key), name=key)

    def put_transaction_log(self, log: TransactionLog) -> None:
        data = transaction_log.encode(log, level=self.level)
        metadata = _object_metadata("transaction-log")
        self.storage.put(f"transactions/{log.id}", data, metadata=metadata)

    def manifest(self, manifest_id: ManifestId) -> Manifest:
        key = f"manifests/{manifest_id}"
        return manifest.decode(self._read(key), name=key)

    async def manifest_payload(self, manifest_id: ManifestId) -> bytes:
        """A manifest decompressed but not decoded: enough to look single chunks up."""
        key = f"manifests/{manifest_id}"
        cached = self._manifests.get(key)
        if cached is not None:
            return cached
        (data,) = await self.storage.get_many_async([key])
        _, payload = header.unpack(data, header.FileType.MANIFEST, name=key)
        self._manifests.put(key, payload)
        return payload

    def put_manifest(self, value: Manifest) -> int:
        """Write a manifest; the size of its file."""
        data = manifest.encode(value, level=self.level)
        self.storage.put(f"manifests/{value.id}", data, metadata=_object_metadata("manifest"))
        return len(data)

    async def chunk(self, ref: NativeRef, start: int, length: int) -> bytes:
        """Bytes of a chunk, counted from the chunk's own beginning."""
        return await self.storage.get_range_async(
            f"chunks/{ref.chunk_id}", ref.offset + start, length
        )

    async def put_chunk(self, chunk_id: ChunkId, data: bytes) -> None:
        await self.storage.put_async(f"chunks/{chunk_id}", data)

    def _read(self, key: str) -> bytes:
        (data,) = self.storage.get_many([key])
        return data


def _rebuild(storage: Storage, level: int) -> Assets:
    return Assets(storage, level=level)


class _Cache:
    """Bytes by key, the least recently used dropped beyond a budget."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._size = 0
        self._items: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> bytes | None:
        with self._lock:
            value = self._items.get(key)
            if value is not None:
                self._items.move_to_end(key)
            return value

    def put(self, key: str, value: bytes) -> None:
        with self._lock:
            self._size += len(value) - len(self._items.pop(key, b""))
            self._items[key] = value
            while self._size > self._budget:
                _, dropped = self._items.popitem(last=False)
                self._size -= len(dropped)
