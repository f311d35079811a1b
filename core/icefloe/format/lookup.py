"""Find one chunk reference in a manifest's payload by binary search, without decoding the rest."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from flatbuffers import packer

from icefloe.errors import FormatError
from icefloe.format import locations, wire
from icefloe.format.chunk_refs import ChunkRef, InlineRef, NativeRef, VirtualRef
from icefloe.format.ids import ChunkId, NodeId
from icefloe.format.manifest import DICTIONARY
from icefloe.format.ragged import Ragged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from icefloe.format.layout import Table

_U16 = packer.voffset.unpack_from
_U32 = packer.uoffset.unpack_from
_I32 = packer.soffset.unpack_from
_INDEX_SLOT = wire.CHUNK_REF.fields["index"].slot


def find_ref(
    payload: bytes | memoryview, node_id: NodeId, coords: Sequence[int], *, name: str = "manifest"
) -> ChunkRef | None:
    """The reference of one chunk; None if the manifest has none.

    Takes the decompressed payload of a manifest file, and time that grows with the logarithm of the
    number of references.

    Raises:
        FormatError: bytes on the way to the reference are damaged, or the array has another number
            of dimensions; the message has `name`.
    """
    try:
        return _Payload(memoryview(payload), name).find(node_id, tuple(coords))
    except struct.error:
        raise FormatError(
            f"{name}: an offset points outside the file", kind="invalid-flatbuffer"
        ) from None


class _Payload:
    """Reads single fields; reading past the end raises `struct.error`."""

    def __init__(self, data: memoryview, name: str) -> None:
        self.data = data
        self.name = name

    def fail(self, reason: str) -> FormatError:
        return FormatError(f"{self.name}: {reason}", kind="invalid-flatbuffer")

    def find(self, node_id: NodeId, coords: tuple[int, ...]) -> ChunkRef | None:
        (root,) = _U32(self.data)
        array = self._search(self._vector(root, wire.MANIFEST, "arrays"), node_id.raw, self._id)
        if array is None:
            return None
        read_coords = struct.Struct(f"<{len(coords)}I").unpack_from

        def index(ref: int) -> tuple[int, ...]:
            at = self._place(ref, _INDEX_SLOT)
            if not at:
                raise self.fail("ChunkRef.index is required and missing")
            at += _U32(self.data, at)[0]
            if _U32(self.data, at)[0] != len(coords):
                raise self.fail(f"a chunk of node {node_id} has not {len(coords)} dimensions")
            return read_coords(self.data, at + 4)

        ref = self._search(self._vector(array, wire.ARRAY_MANIFEST, "refs"), coords, index)
        return None if ref is None else self._ref(root, ref)

    def _search[K: (bytes, tuple[int, ...])](
        self, vector: tuple[int, int] | None, wanted: K, key: Callable[[int], K]
    ) -> int | None:
        """The table with this key, in a vector of tables sorted by it."""
        if vector is None:
            raise self.fail("a required list is missing")
        start, high = vector
        low = 0
        while low < high:
            middle = (low + high) // 2
            at = start + 4 * middle
            table: int = at + _U32(self.data, at)[0]
            found = key(table)
            if found == wanted:
                return table
            if found < wanted:
                low = middle + 1
            else:
                high = middle
        return None

    def _id(self, array: int) -> bytes:
        return self._bytes(self._field(array, wire.ARRAY_MANIFEST, "node_id"), NodeId.SIZE)

    def _ref(self, root: int, ref: int) -> ChunkRef:
        """Payloads are looked for in the order of the official reader."""
        offset = self._scalar(ref, wire.CHUNK_REF, "offset")
        length = self._scalar(ref, wire.CHUNK_REF, "length")
        if at := self._field(ref, wire.CHUNK_REF, "chunk_id"):
            return NativeRef(ChunkId(self._bytes(at, ChunkId.SIZE)), offset, length)
        location = self._location(root, ref)
        if location is not None:
            etag = self._run(ref, wire.CHUNK_REF, "checksum_etag")
            return VirtualRef(
                self._text(location),
                offset,
                length,
                None if etag is None else self._text(etag),
                self._scalar(ref, wire.CHUNK_REF, "checksum_last_modified") or None,
            )
        inline = self._run(ref, wire.CHUNK_REF, "inline")
        if inline is None:
            raise self.fail("a ChunkRef has neither chunk_id, location nor inline")
        return InlineRef(inline)

    def _location(self, root: int, ref: int) -> bytes | None:
        frame = self._run(ref, wire.CHUNK_REF, "compressed_location")
        if frame is None:
            return self._run(ref, wire.CHUNK_REF, "location")
        dictionary = self._run(root, wire.MANIFEST, "location_dictionary")
        if (
            dictionary is None
            or self._scalar(root, wire.MANIFEST, "compression_algorithm") != DICTIONARY
        ):
            raise self.fail("a ChunkRef has a compressed location, but there is no dictionary")
        return locations.decompress(Ragged.of([frame]), dictionary, name=self.name)[0]

    def _place(self, table: int, slot: int) -> int:
        """Where a slot of the table lies; 0 if it is absent."""
        vtable = table - _I32(self.data, table)[0]
        if vtable < 0:
            raise self.fail("a vtable lies outside the file")
        at = 4 + 2 * slot
        if _U16(self.data, vtable)[0] <= at:
            return 0
        offset = _U16(self.data, vtable + at)[0]
        return table + offset if offset else 0

    def _field(self, table: int, layout: Table, name: str) -> int:
        return self._place(table, layout.fields[name].slot)

    def _scalar(self, table: int, layout: Table, name: str) -> int:
        field = layout.fields[name]
        at = self._place(table, field.slot)
        width = field.dtype.itemsize
        return int.from_bytes(self._bytes(at, width), "little") if at else field.default

    def _vector(self, table: int, layout: Table, name: str) -> tuple[int, int] | None:
        """Where a vector's items begin and how many there are; None if it is absent."""
        at = self._field(table, layout, name)
        if not at:
            return None
        at += _U32(self.data, at)[0]
        return at + 4, _U32(self.data, at)[0]

    def _run(self, table: int, layout: Table, name: str) -> bytes | None:
        """A string or a vector of bytes."""
        vector = self._vector(table, layout, name)
        return None if vector is None else self._bytes(*vector)

    def _bytes(self, at: int, size: int) -> bytes:
        if at + size > len(self.data):
            raise self.fail("a field points outside the file")
        return bytes(self.data[at : at + size])

    def _text(self, value: bytes) -> str:
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise self.fail("a ChunkRef holds a string that is not UTF-8") from None
