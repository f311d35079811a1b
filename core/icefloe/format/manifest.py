"""Manifests: the chunk references of one or more arrays, or of a part of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.format import header, locations, wire
from icefloe.format.chunk_refs import ChunkRefs, RefKind
from icefloe.format.ids import ManifestId, NodeId
from icefloe.format.ragged import Ragged, starts
from icefloe.format.reading import Buffer, Tables, ids_ascend
from icefloe.format.writing import Column, Lists, Structs, TableRows, check_rewritable, write

if TYPE_CHECKING:
    from numpy.typing import NDArray

DICTIONARY = 1
"""`compression_algorithm`: locations are zstd frames made with the manifest's dictionary."""
RAW = 0


@dataclass(frozen=True, slots=True, eq=False)
class ArrayManifest:
    """The references of one array, sorted by index."""

    node_id: NodeId
    refs: ChunkRefs
    extra: bytes | None = None

    def equals(self, other: ArrayManifest) -> bool:
        return (
            self.node_id == other.node_id
            and self.extra == other.extra
            and self.refs.equals(other.refs)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LocationCompression:
    """When virtual locations are compressed with a dictionary, and how well."""

    min_refs: int = 1000
    level: int = 3
    max_samples: int = locations.MAX_SAMPLES
    max_dictionary_bytes: int = locations.DICTIONARY_SIZE


@dataclass(frozen=True, slots=True, eq=False)
class Manifest:
    """A manifest file. Locations are plain here, however the file stores them."""

    id: ManifestId
    arrays: tuple[ArrayManifest, ...]
    extra: bytes | None = None
    unknown: frozenset[str] = frozenset()
    """Tables with fields that this version does not know; such a file cannot be rewritten."""

    def equals(self, other: Manifest) -> bool:
        return (
            (self.id, self.extra) == (other.id, other.extra)
            and len(self.arrays) == len(other.arrays)
            and all(a.equals(b) for a, b in zip(self.arrays, other.arrays, strict=True))
        )

    def array(self, node_id: NodeId) -> ChunkRefs | None:
        return next((item.refs for item in self.arrays if item.node_id == node_id), None)

    @property
    def count(self) -> int:
        """How many references all arrays have together."""
        return sum(len(item.refs) for item in self.arrays)


def encode(
    manifest: Manifest,
    *,
    compression: LocationCompression = LocationCompression(),
    level: int = 3,
) -> bytes:
    """The file's bytes.

    Raises:
        InvalidInputError: references are not sorted, occur twice, or have no bytes.
    """
    check_rewritable(manifest.unknown, f"manifest {manifest.id}")
    arrays = sorted(manifest.arrays, key=lambda item: item.node_id.raw)
    for item in arrays:
        _check(item)
    dictionary = _train([item.refs for item in arrays], compression)
    counts = np.array([len(item.refs) for item in arrays], np.int64)
    node_ids = b"".join(item.node_id.raw for item in arrays)
    rows = TableRows(
        wire.ARRAY_MANIFEST,
        len(arrays),
        {
            "node_id": Structs(np.frombuffer(node_ids, np.uint8).reshape(-1, NodeId.SIZE)),
            "refs": Lists(
                counts, _ref_rows([item.refs for item in arrays], dictionary, compression)
            ),
            "extra": Ragged.of(item.extra for item in arrays),
        },
    )
    columns: dict[str, Column] = {
        "id": Structs(np.frombuffer(manifest.id.raw, np.uint8).reshape(1, -1)),
        "arrays": Lists(np.array([len(arrays)], np.int64), rows),
        "location_dictionary": Ragged.of([dictionary]),
        "compression_algorithm": np.array([DICTIONARY if dictionary else RAW], np.uint8),
        "extra": Ragged.of([manifest.extra]),
    }
    payload = write(TableRows(wire.MANIFEST, 1, columns), wire.FILE_IDENTIFIER)
    return header.pack(payload, header.FileType.MANIFEST, level=level)


def decode(data: bytes | memoryview, *, name: str = "manifest") -> Manifest:
    """Read a manifest file of spec version 1 or 2.

    Raises:
        FormatError: naming `name` and what is wrong.
    """
    _, payload = header.unpack(data, header.FileType.MANIFEST, name=name)
    return decode_payload(payload, name=name)


def decode_payload(payload: bytes | memoryview, *, name: str = "manifest") -> Manifest:
    """Read the decompressed payload of a manifest file."""
    buffer = Buffer(payload, name)
    root = buffer.root(wire.MANIFEST)
    dictionary = root.vector("location_dictionary")[0]
    algorithm = int(root.scalar("compression_algorithm")[0])
    _, arrays = root.tables("arrays")
    counts, refs = arrays.tables("refs")
    extras = arrays.vector("extra").tolist()
    node_ids = arrays.struct("node_id")
    if not ids_ascend(node_ids):
        raise buffer.fail("the arrays do not ascend by node id, each id once")
    columns = _ref_columns(refs, dictionary if algorithm == DICTIONARY else None)
    index = refs.vector("index")
    first = starts(counts)
    parts = []
    for row, (start, count) in enumerate(zip(first.tolist(), counts.tolist(), strict=True)):
        rows = slice(start, start + count)
        coords = _coordinates(index.take(rows), buffer)
        node_id = NodeId(node_ids[row].tobytes())
        part = _slice_refs(columns, rows, coords)
        if not part.is_sorted():
            raise buffer.fail(f"the references of node {node_id} do not ascend, each index once")
        parts.append(ArrayManifest(node_id, part, extras[row]))
    return Manifest(
        ManifestId(root.struct("id")[0].tobytes()),
        tuple(parts),
        root.vector("extra")[0],
        frozenset(buffer.unknown),
    )


def _check(item: ArrayManifest) -> None:
    refs = item.refs
    if not refs.is_sorted():
        raise InvalidInputError(
            f"chunk references of node {item.node_id} must ascend by index, each index once",
            kind="unsorted-chunks",
        )
    empty = (refs.kind != RefKind.INLINE) & (refs.length == 0)
    if bool(empty.any()):
        coords = tuple(refs.index[int(np.flatnonzero(empty)[0])].tolist())
        raise InvalidInputError(
            f"chunk {coords} of node {item.node_id} has length 0: leave it out instead",
            kind="zero-length-chunk",
        )


def _train(parts: list[ChunkRefs], compression: LocationCompression) -> bytes | None:
    virtual = [
        part.location.take(part.kind == RefKind.VIRTUAL)
        for part in parts
        if part.location is not None
    ]
    if sum(len(column) for column in virtual) < max(compression.min_refs, 1):
        return None
    column = Ragged.concat(virtual)
    column = column.take(column.length <= locations.MAX_LENGTH)
    step = max(1, len(column) // max(compression.max_samples, 1))
    samples = column.take(np.arange(0, len(column), step, dtype=np.int64)).tolist()
    return locations.train(
        [sample for sample in samples if sample is not None],
        level=compression.level,
        max_samples=compression.max_samples,
        max_size=compression.max_dictionary_bytes,
    )


def _ref_rows(
    parts: list[ChunkRefs], dictionary: bytes | None, compression: LocationCompression
) -> TableRows:
    indexes = Ragged.concat([Ragged.fixed(part.index) for part in parts])
    # The number of dimensions may differ between arrays; all other columns join.
    refs = ChunkRefs.concat([_without_index(part) for part in parts])
    native = refs.kind == RefKind.NATIVE
    columns: dict[str, Column] = {
        "index": indexes,
        "offset": refs.offset,
        "length": refs.length,
    }
    if bool(native.any()):
        columns["chunk_id"] = Structs(refs.chunk_id, native)
    if refs.inline is not None:
        columns["inline"] = refs.inline.where(refs.kind == RefKind.INLINE)
    if refs.location is not None:
        columns |= _location_columns(refs, dictionary, compression)
    if refs.checksum_etag is not None:
        columns["checksum_etag"] = refs.checksum_etag.where(refs.kind == RefKind.VIRTUAL)
    if refs.checksum_last_modified is not None:
        columns["checksum_last_modified"] = refs.checksum_last_modified
    if refs.extra is not None:
        columns["extra"] = refs.extra
    return TableRows(wire.CHUNK_REF, len(refs), columns)


def _without_index(refs: ChunkRefs) -> ChunkRefs:
    columns = {name: getattr(refs, name) for name in ChunkRefs.__slots__}
    return ChunkRefs(**columns | {"index": np.zeros((len(refs), 0), np.uint32)})


def _location_columns(
    refs: ChunkRefs, dictionary: bytes | None, compression: LocationCompression
) -> dict[str, Column]:
    if refs.location is None:
        return {}
    virtual = refs.kind == RefKind.VIRTUAL
    plain = refs.location.where(virtual)
    if dictionary is None:
        return {"location": plain}
    short = (plain.length > 0) & (plain.length <= locations.MAX_LENGTH)
    rows = np.flatnonzero(short)
    distinct, codes = plain.take(rows).distinct()
    frames = locations.compress(distinct, dictionary, level=compression.level)
    spread = np.zeros(len(refs), np.int64)
    spread[rows] = codes
    columns: dict[str, Column] = {"compressed_location": frames.take(spread).where(short)}
    if len(rows) < int(plain.present.sum()):
        columns["location"] = plain.where(~short)
    return columns


def _ref_columns(refs: Tables, dictionary: bytes | None) -> dict[str, Any]:
    """All columns but the index, with the kind worked out as the official reader does."""
    native = refs.has("chunk_id")
    compressed = refs.vector("compressed_location", may_share=True)
    location = refs.text("location", may_share=True)
    inline = refs.vector("inline")
    virtual = ~native & (compressed.present | location.present)
    if not bool((native | virtual | inline.present).all()):
        raise refs.buffer.fail("a ChunkRef has neither chunk_id, location nor inline")
    kind = np.where(native, RefKind.NATIVE, np.where(virtual, RefKind.VIRTUAL, RefKind.INLINE))
    squeezed = virtual & compressed.present
    if bool(squeezed.any()):
        location = _expand(refs.buffer, compressed, location, squeezed, dictionary)
    modified = refs.scalar("checksum_last_modified")
    etag = refs.text("checksum_etag", may_share=True).where(virtual)
    extra = refs.vector("extra")
    return {
        "kind": kind.astype(np.uint8),
        "chunk_id": refs.struct("chunk_id"),
        "offset": refs.scalar("offset"),
        "length": refs.scalar("length"),
        "inline": _if_any(inline.where(kind == RefKind.INLINE)),
        "location": _if_any(location.where(virtual)),
        "checksum_etag": _if_any(etag),
        "checksum_last_modified": np.where(virtual, modified, 0).astype(np.uint32)
        if bool(modified.any())
        else None,
        "extra": _if_any(extra),
    }


def _expand(
    buffer: Buffer,
    compressed: Ragged,
    location: Ragged,
    squeezed: NDArray[np.bool_],
    dictionary: bytes | None,
) -> Ragged:
    """Locations with the compressed ones decompressed, each distinct frame once."""
    if dictionary is None:
        raise buffer.fail("a ChunkRef has a compressed location, but there is no dictionary")
    rows = np.flatnonzero(squeezed)
    frames, codes = compressed.take(rows).distinct()
    plain = locations.decompress(frames, dictionary, name=buffer.name)
    buffer.check_utf8(plain, "a compressed location")
    both = Ragged.concat([location, plain])
    start, length = both.start[: len(location)], both.length[: len(location)]
    start[rows] = both.start[len(location) :][codes]
    length[rows] = both.length[len(location) :][codes]
    return Ragged(both.data, start, length)


def _if_any(column: Ragged) -> Ragged | None:
    return column if bool(column.present.any()) else None


def _coordinates(index: Ragged, buffer: Buffer) -> NDArray[np.uint32]:
    """The (n, dimensions) index of one array."""
    if not len(index):
        return np.zeros((0, 0), np.uint32)
    length = int(index.length[0])
    if bool((index.length != length).any()):
        raise buffer.fail("chunk references of one array differ in their number of dimensions")
    if length == 0:
        return np.zeros((len(index), 0), np.uint32)
    return index.values(np.dtype("<u4")).reshape(len(index), length // 4)


def _slice_refs(columns: dict[str, Any], rows: slice, index: NDArray[np.uint32]) -> ChunkRefs:
    parts: dict[str, Any] = {}
    for name, column in columns.items():
        if column is None:
            parts[name] = None
        else:
            parts[name] = column.take(rows) if isinstance(column, Ragged) else column[rows]
    return ChunkRefs(index=index, **parts)
