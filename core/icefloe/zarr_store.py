"""The zarr v3 store on a session."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
from zarr.abc.buffer import Buffer
from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.core.buffer import default_buffer_prototype

from icefloe.config import effective
from icefloe.errors import InvalidInputError, ReadOnlyError
from icefloe.format import paths
from icefloe.format.chunk_refs import InlineRef, NativeRef, RefKind, VirtualRef
from icefloe.format.ids import encode_ids
from icefloe.storage.keys import is_unicode
from icefloe.virtual_columns import virtual_columns, virtual_grid, virtual_spec
from icefloe.working_tree import ChunkType

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence
    from datetime import datetime

    from numpy.typing import NDArray
    from zarr.core.buffer import BufferPrototype

    from icefloe.chunk_edits import Coordinates
    from icefloe.config import Effective
    from icefloe.format.chunk_refs import ChunkRefs
    from icefloe.session import Session
    from icefloe.virtual import VirtualChunkSpec

METADATA = "zarr.json"
# As zarr writes it: one chunk must not have two keys.
_COORDINATE = re.compile("0|[1-9][0-9]{0,9}")
_LISTED = 10_000
"""Chunk keys made at a time while listing."""
_CHUNK_TYPES = np.zeros(3, np.uint8)
_CHUNK_TYPES[[RefKind.NATIVE, RefKind.INLINE, RefKind.VIRTUAL]] = (
    ChunkType.NATIVE.value,
    ChunkType.INLINE.value,
    ChunkType.VIRTUAL.value,
)

# The verb `list` hides the builtin inside the class below.
type Buffers = list[Buffer | None]
type Indices = list[tuple[int, ...]]
type Paths = list[str]
type ChunkColumns = tuple[
    NDArray[np.uint32],
    NDArray[np.uint8],
    Paths,
    NDArray[np.uint64],
    NDArray[np.uint64],
    dict[int, bytes],
]
"""Coordinates, `ChunkType` values, places, offsets, lengths; the bytes of inline chunks by row."""


class ReadOnlyStoreError(ReadOnlyError, ValueError):
    """A write to a read-only store; zarr expects a ValueError."""


class IcechunkStore(Store):
    """Keys of a zarr v3 hierarchy, read from and written to a session."""

    def __init__(self, session: Session, *, read_only: bool | None = None) -> None:
        super().__init__(read_only=session.read_only if read_only is None else read_only)
        self._session = session

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IcechunkStore):
            return False
        mine, theirs = self._session, other._session
        # A read-only session is its snapshot, whose id no other repository has.
        same_bytes = mine.read_only and theirs.read_only and mine.snapshot_id == theirs.snapshot_id
        return mine is theirs or same_bytes

    def __dask_tokenize__(self) -> tuple[str, str, str]:
        return self._session.__dask_tokenize__()

    def __repr__(self) -> str:
        return f"IcechunkStore({self._session!r})"

    __str__ = __repr__

    def _check_writable(self) -> None:
        if self.read_only:
            # zarr's words, and what they mean here.
            raise ReadOnlyStoreError(
                "store was opened in read-only mode and does not support writing: take the store "
                f"of a new session of Repository.writable_session ({self._session!r})",
                kind="read-only-session",
            )

    def with_read_only(self, read_only: bool = False) -> IcechunkStore:
        return IcechunkStore(self._session, read_only=read_only)

    @property
    def session(self) -> Session:
        return self._session

    @property
    def supports_writes(self) -> bool:
        return True

    @property
    def supports_deletes(self) -> bool:
        return True

    @property
    def supports_listing(self) -> bool:
        return True

    @property
    def supports_consolidated_metadata(self) -> bool:
        return False

    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        data = await self._read(key, _part(byte_range))
        if data is None:
            return None
        return (prototype or default_buffer_prototype()).buffer.from_bytes(data)

    async def get_partial_values(
        self,
        prototype: BufferPrototype,
        key_ranges: Iterable[tuple[str, ByteRequest | None]],
    ) -> Buffers:
        # Ranges of one key are asked for at once, so that the session can join neighbours.
        ranges: dict[str, dict[int, ByteRequest | None]] = defaultdict(dict)
        count = 0
        for key, byte_range in key_ranges:
            ranges[key][count] = byte_range
            count += 1
        found: Buffers = [None] * count
        limit = asyncio.Semaphore(max(self._settings().get_partial_values_concurrency, 1))

        async def read(key: str, wanted: dict[int, ByteRequest | None]) -> None:
            async with limit:
                parts = (self.get(key, prototype, part) for part in wanted.values())
                for row, part in zip(wanted, await asyncio.gather(*parts), strict=True):
                    found[row] = part

        await asyncio.gather(*(read(key, wanted) for key, wanted in ranges.items()))
        return found

    async def exists(self, key: str) -> bool:
        target = _parse(key)
        if target is None:
            return False
        path, coords = target
        if coords is None:
            return self._session.node(path) is not None
        return await self._session.chunk_ref(path, coords) is not None

    async def set(self, key: str, value: Buffer) -> None:
        self._check_writable()
        if not isinstance(value, Buffer):
            raise TypeError(f"IcechunkStore.set() takes a zarr Buffer, not {type(value)}")
        path, coords = self._writable_target(key)
        # zarr passes arrays of any memory layout; the session keeps bytes.
        data = value.to_bytes()
        if coords is None:
            self._session.set_node(path, data)
        else:
            await self._session.set_chunk(path, coords, data)

    def set_virtual_ref(
        self,
        key: str,
        location: str,
        *,
        offset: int,
        length: int,
        checksum: str | datetime | None = None,
        validate_container: bool = True,
    ) -> None:
        """Let a chunk be some bytes of another object.

        Args:
            key: of the chunk, for example `t2m/c/0/1`.
            location: URL of the object.
            offset: where the chunk begins there.
            length: how many bytes it has.
            checksum: the object's etag, or when it was last changed: reading fails once it is
                another.
            validate_container: refuse a location that no virtual chunk container has.
        """
        self._check_writable()
        path, coords = self._writable_target(key)
        if coords is None:
            raise InvalidInputError(f"{key!r} is no chunk", kind="invalid-key")
        spec = virtual_spec(coords, location, offset, length, checksum)
        self._session.set_virtual_refs(
            path, virtual_columns([spec]), validate_containers=validate_container
        )

    def set_virtual_refs(
        self,
        array_path: str,
        chunks: Sequence[VirtualChunkSpec],
        *,
        validate_containers: bool = True,
    ) -> Indices | None:
        """`set_virtual_ref` for many chunks of one array; the indices of those refused, or None."""
        self._check_writable()
        if not chunks:
            return None
        refs = virtual_columns(chunks)
        return self._session.set_virtual_refs_leniently(
            _path(array_path), refs, validate_containers=validate_containers
        )

    def set_virtual_refs_arr(
        self,
        array_path: str,
        chunk_grid_shape: Sequence[int],
        locations: Sequence[str],
        offsets: NDArray[np.uint64],
        lengths: NDArray[np.uint64],
        *,
        validate_containers: bool = True,
        arr_offset: Sequence[int] | None = None,
        checksum: datetime | str | None = None,
    ) -> Indices | None:
        """`set_virtual_refs` from columns, in C order of the grid; no location means no chunk."""
        self._check_writable()
        refs = virtual_grid(chunk_grid_shape, locations, offsets, lengths, arr_offset, checksum)
        return self._session.set_virtual_refs_leniently(
            _path(array_path), refs, validate_containers=validate_containers
        )

    async def set_virtual_ref_async(self, key: str, location: str, **options: Any) -> None:
        self.set_virtual_ref(key, location, **options)

    async def set_virtual_refs_async(
        self, array_path: str, chunks: Sequence[VirtualChunkSpec], **options: Any
    ) -> Indices | None:
        return self.set_virtual_refs(array_path, chunks, **options)

    async def set_virtual_refs_arr_async(self, *args: Any, **options: Any) -> Indices | None:
        return self.set_virtual_refs_arr(*args, **options)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        self._check_writable()
        if not await self.exists(key):
            await self.set(key, value)

    async def delete(self, key: str) -> None:
        self._check_writable()
        target = _parse(key)
        if target is None:
            return
        path, coords = target
        if coords is None:
            self._session.delete_node(path)
        else:
            await self._session.delete_chunk(path, coords)

    async def delete_dir(self, prefix: str) -> None:
        self._check_writable()
        path = _path(prefix)
        if self._session.node(path) is not None or self._session.paths(path):
            self._session.delete_node(path)
            return
        async for key in self.list_prefix(prefix.rstrip("/") + "/"):
            await self.delete(key)

    async def clear(self) -> None:
        self.sync_clear()

    def sync_clear(self) -> None:
        """Delete all groups and arrays; the history keeps them."""
        self._check_writable()
        self._session.delete_node("/")

    async def is_empty(self, prefix: str) -> bool:
        folder = _path(prefix)[1:]
        async for _ in self.list_prefix(f"{folder}/" if folder else ""):
            return False
        return True

    async def getsize(self, key: str) -> int:
        target = _parse(key)
        if target is not None and target[1] is not None:
            # The reference knows, so nothing is fetched.
            match await self._session.chunk_ref(target[0], target[1]):
                case NativeRef(length=length) | VirtualRef(length=length):
                    return length
                case InlineRef(data=data):
                    return len(data)
                case None:
                    raise FileNotFoundError(key)
        document = await self._read(key, slice(None))
        if document is None:
            raise FileNotFoundError(key)
        return len(document)

    async def list(self) -> AsyncIterator[str]:
        async for key in self.list_prefix(""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Keys at and below a prefix, which is a folder even without its slash: not `foo-bar/`.

        They come as they are found: of a large array, few are in memory at once.
        """
        folder = _path(prefix)[1:]
        # With its slash a prefix is no key.
        without = folder if prefix.endswith("/") else None
        for path in self._paths(folder):
            root = f"{path}/".lstrip("/")
            if _is_within(root + METADATA, folder) and root + METADATA != without:
                yield root + METADATA
            leading = self._leading(path, f"{root}c", folder)
            if leading is None:
                continue
            async for batch in self._session.chunk_batches(path, leading):
                for first in range(0, len(batch), _LISTED):
                    for row in batch[first : first + _LISTED].tolist():
                        key = root + "/".join(["c", *map(str, row)])
                        if _is_within(key, folder) and key != without:
                            yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        path = _path(prefix)
        node = self._session.node(path)
        if node is not None:
            yield METADATA
        if node is not None and node.array is not None:
            yield "c"
            return
        depth = 0 if path == "/" else path.count("/")
        names = dict.fromkeys(below.split("/")[depth + 1] for below in self._session.paths(path))
        for name in names:
            yield name
        if node is None and not names:
            async for number in self._next_coordinates(path):
                yield str(number)

    async def _next_coordinates(self, folder: str) -> AsyncIterator[int]:
        """What follows in the keys of the chunks in a folder such as `/array/c/0`."""
        array, leading = _parse(folder.lstrip("/")) or ("/", None)
        node = self._session.node(array)
        if leading is None or node is None or node.array is None:
            return
        if len(leading) >= len(node.array.shape):
            return
        seen: set[int] = set()
        async for batch in self._session.chunk_batches(array, leading):
            new = set(np.unique(batch[:, len(leading)]).tolist()) - seen
            seen |= new
            for number in sorted(new):
                yield number

    async def array_chunk_iterator(
        self, array_path: str, batch_size: int = 100_000
    ) -> AsyncIterator[ChunkColumns]:
        """All chunk references of an array as columns, at most `batch_size` rows at a time.

        A place is the URL of a virtual chunk, the id of a native one, and nothing for one that is
        inline. An offset is counted in that object.
        """
        async for refs in self._session.ref_batches(_path(array_path)):
            for first in range(0, len(refs), batch_size):
                rows = np.arange(first, min(first + batch_size, len(refs)))
                yield self._columns(refs.take(rows))

    def _columns(self, refs: ChunkRefs) -> ChunkColumns:
        places = np.full(len(refs), "", object)
        native = refs.kind == RefKind.NATIVE
        places[native] = encode_ids(refs.chunk_id[native]).astype(str)
        virtual = refs.kind == RefKind.VIRTUAL
        if refs.location is not None:
            locations = refs.location.take(virtual).texts()
            places[virtual] = [self._session.resolve_location(each) for each in locations]
        inlined: dict[int, bytes] = {}
        lengths = refs.length.copy()
        for row in np.flatnonzero(refs.kind == RefKind.INLINE).tolist():
            data = (refs.inline[row] if refs.inline is not None else None) or b""
            inlined[row], lengths[row] = data, len(data)
        kinds = _CHUNK_TYPES[refs.kind]
        return refs.index, kinds, places.tolist(), refs.offset, lengths, inlined

    def _paths(self, folder: str) -> Paths:
        """Paths of nodes that may have keys in a folder."""
        path = _path(folder)
        above = [*reversed(paths.ancestors(path)), path]
        found = [each for each in above if self._session.node(each) is not None]
        return found + self._session.paths(path)

    def _leading(self, path: str, chunks: str, folder: str) -> Coordinates | None:
        """The first coordinates of the array's chunks in a folder; None: none are there."""
        if _is_within(chunks, folder):
            return ()
        node = self._session.node(path)
        if node is None or node.array is None or not folder.startswith(f"{chunks}/"):
            return None
        parts = folder.removeprefix(f"{chunks}/").split("/")
        rank = len(node.array.shape)
        if len(parts) > rank or not all(_COORDINATE.fullmatch(part) for part in parts):
            return None
        # The last coordinate of a whole key is compared with the keys.
        return tuple(int(part) for part in parts[: rank - 1])

    def _settings(self) -> Effective:
        return effective(self._session.config)

    async def _read(self, key: str, part: slice) -> bytes | None:
        target = _parse(key)
        if target is None:
            return None
        path, coords = target
        if coords is not None:
            return await self._session.get_chunk(path, coords, part)
        node = self._session.node(path)
        return None if node is None else node.user_data[part]

    def _writable_target(self, key: str) -> tuple[str, Coordinates | None]:
        target = _parse(key)
        if target is None:
            raise InvalidInputError(
                f"{key!r} is not a key of a zarr v3 hierarchy: icechunk stores zarr.json documents "
                "and chunks with the default key encoding (c/0/1)",
                kind="invalid-key",
            )
        return target


def _path(prefix: str) -> str:
    _require_text(prefix)
    return "/" + prefix.strip("/")


def _require_text(key: Any) -> None:
    if not isinstance(key, str) or not is_unicode(key):
        raise InvalidInputError(
            f"{key!a} is no key or prefix of a zarr store: pass a str of Unicode text",
            kind="invalid-key",
        )


def _is_within(key: str, folder: str) -> bool:
    return not folder or key == folder or key.startswith(f"{folder}/")


def _parse(key: str) -> tuple[str, Coordinates | None] | None:
    """The node path of a key, and the chunk's coordinates unless the key is its zarr.json."""
    if not isinstance(key, str):
        _require_text(key)
    parts = key.split("/")
    if parts[-1] == METADATA:
        return _valid("/".join(parts[:-1]), None)
    if "c" not in parts:
        return None
    at = len(parts) - 1 - parts[::-1].index("c")
    digits = parts[at + 1 :]
    if not all(_COORDINATE.fullmatch(part) for part in digits):
        return None
    return _valid("/".join(parts[:at]), tuple(int(part) for part in digits))


def _valid(path: str, coords: Coordinates | None) -> tuple[str, Coordinates | None] | None:
    try:
        return paths.validate(f"/{path}"), coords
    except InvalidInputError:
        return None


def _part(byte_range: ByteRequest | None) -> slice:
    match byte_range:
        case None:
            return slice(None)
        case RangeByteRequest(start=start, end=end):
            return slice(start, end)
        case OffsetByteRequest(offset=offset):
            return slice(offset, None)
        case SuffixByteRequest(suffix=suffix):
            return slice(-suffix, None) if suffix else slice(0)
        case _:
            raise InvalidInputError(f"Unexpected byte_range, got {byte_range!r}")
