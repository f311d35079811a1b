"""Ways to damage a metadata file, blindly or knowing where its offsets and lengths are."""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import zstandard

from icefloe.format import header
from icefloe.format.header import FileType
from icefloe.format.ids import NodeId
from icefloe.format.layout import Kind, Table

type Places = set[tuple[int, int]]
"""(position, width) within a payload."""


@dataclass(frozen=True)
class Sample:
    """An honest file, the places that steer a reader, and chunks to look up in a manifest.

    `values` are the FlexBuffers in it, as (position, length).
    """

    kind: FileType
    data: bytes
    payload: bytes
    places: list[tuple[int, int]]
    values: list[tuple[int, int]]
    lookups: list[tuple[NodeId, list[int]]] = field(default_factory=list)


def steering_places(payload: bytes, root: Table) -> tuple[Places, Places]:
    """Offsets, lengths, vtables, tags and scalars; and the FlexBuffers, with their lengths.

    Large vectors are followed at both ends only.
    """
    places: Places = {(0, 4)}
    values: Places = set()
    _walk(payload, int.from_bytes(payload[:4], "little"), root, places, values)
    return places, values


def _walk(payload: bytes, at: int, table: Table, places: Places, values: Places) -> None:
    vtable = at - struct.unpack_from("<i", payload, at)[0]
    size = _u16(payload, vtable)
    places |= {(at, 4)} | {(vtable + entry, 2) for entry in range(0, size, 2)}
    for item in table.fields.values():
        entry = 4 + 2 * item.slot
        offset = _u16(payload, vtable + entry) if entry < size else 0
        if not offset:
            continue
        place = at + offset
        if item.kind in (Kind.SCALAR, Kind.STRUCT):
            places.add((place, min(item.dtype.itemsize, 8)))
            continue
        target = place + _u32(payload, place)
        places |= {(place, 4), (target, 4)}
        if (table.name, item.name) == ("MetadataItem", "value"):
            values.add((target + 4, _u32(payload, target)))
        if item.kind is Kind.TABLE:
            _walk(payload, target, item.tables[0], places, values)
        elif item.kind is Kind.UNION:
            tag_at = at + _u16(payload, vtable + entry - 2)
            places.add((tag_at, 1))
            _walk(payload, target, item.tables[payload[tag_at] - 1], places, values)
        else:
            tables = item.tables if item.kind is Kind.TABLES else ()
            _walk_vector(payload, target, tables, places, values)


def _walk_vector(
    payload: bytes, at: int, tables: tuple[Table, ...], places: Places, values: Places
) -> None:
    count = _u32(payload, at)
    last = len(payload) - 4
    for row in sorted({*range(min(count, 4)), *range(max(count - 2, 0), count)}):
        entry = at + 4 + 4 * row
        if entry <= last:
            places.add((entry, 4))
        if tables:
            _walk(payload, entry + _u32(payload, entry), tables[0], places, values)


def _u16(payload: bytes, at: int) -> int:
    return int.from_bytes(payload[at : at + 2], "little")


def _u32(payload: bytes, at: int) -> int:
    return int.from_bytes(payload[at : at + 4], "little")


def repack(item: Sample, payload: bytes, *, content_size: bool = True) -> bytes:
    compressor = zstandard.ZstdCompressor(level=1, write_content_size=content_size)
    return item.data[: header.SIZE] + compressor.compress(payload)


def truncate(item: Sample, random: Random, others: list[Sample]) -> bytes:
    return item.data[: random.randrange(len(item.data))]


def flip_bits(item: Sample, random: Random, others: list[Sample]) -> bytes:
    data = bytearray(item.data)
    for _ in range(random.randint(1, 8)):
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(data)


def change_header(item: Sample, random: Random, others: list[Sample]) -> bytes:
    """Magic, version, type or compression byte."""
    data = bytearray(item.data)
    data[random.choice((random.randrange(12), 36, 37, 38))] = random.randrange(256)
    return bytes(data)


def append_garbage(item: Sample, random: Random, others: list[Sample]) -> bytes:
    return item.data + random.choice((b"\0", random.randbytes(50), others[0].data[header.SIZE :]))


def flip_payload(item: Sample, random: Random, others: list[Sample]) -> bytes:
    payload = bytearray(item.payload)
    for _ in range(random.randint(1, 6)):
        payload[random.randrange(len(payload))] ^= 1 << random.randrange(8)
    return repack(item, bytes(payload), content_size=random.random() < 0.9)


def steer(item: Sample, random: Random, others: list[Sample]) -> bytes:
    """Change offsets, lengths, vtables and tags: out of range, cyclic, absurd, or elsewhere."""
    payload = bytearray(item.payload)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        at, width = random.choice(item.places)
        other = random.choice(item.places)[0]
        limit = 256**width
        value = random.choice(
            (
                0,
                1,
                2,
                random.randrange(12),
                limit - 1,
                limit // 2,
                limit // 2 - 1,
                limit - random.randrange(1, 64),
                other - at,
                at - other,
                len(payload) - at,
                len(payload) // 4,
                int.from_bytes(payload[at : at + width], "little")
                + random.choice((-4, -1, 1, 4, 8)),
                random.randrange(limit),
            )
        )
        payload[at : at + width] = (value % limit).to_bytes(width, "little")
    return repack(item, bytes(payload))


def copy_place(item: Sample, random: Random, others: list[Sample]) -> bytes:
    """Make two places lead to the same target: shared tables, swapped vtables, equal ids."""
    payload = bytearray(item.payload)
    (source, width), (target, _) = random.choice(item.places), random.choice(item.places)
    if width == 4:
        value = source + int.from_bytes(payload[source : source + 4], "little") - target
        payload[target : target + 4] = (value % 2**32).to_bytes(4, "little")
    else:
        payload[target : target + width] = payload[source : source + width]
    return repack(item, bytes(payload))


def splice(item: Sample, random: Random, others: list[Sample]) -> bytes:
    """Part of one payload within another, in place or shifting what follows."""
    donor = random.choice(others).payload
    start = random.randrange(len(donor)) & ~3
    part = donor[start : start + random.choice((4, 8, 64, 400))]
    at = random.randrange(len(item.payload)) & ~3
    kept = at + random.choice((0, 4, len(part)))
    return repack(item, item.payload[:at] + part + item.payload[kept:])


def cut_payload(item: Sample, random: Random, others: list[Sample]) -> bytes:
    return repack(item, item.payload[: random.randrange(len(item.payload))])


def other_type(item: Sample, random: Random, others: list[Sample]) -> bytes:
    """A payload of another type under this file's header."""
    return repack(item, random.choice(others).payload)


def spoil_text(item: Sample, random: Random, others: list[Sample]) -> bytes:
    """Bytes that are no UTF-8 where text may be, or no FlexBuffers where JSON may be."""
    payload = bytearray(item.payload)
    letters = [at for at, byte in enumerate(payload) if 0x2D <= byte < 0x7F]
    for _ in range(random.randint(1, 4)):
        payload[random.choice(letters or [0])] = random.choice((0xFF, 0xC3, 0x80, 0))
    return repack(item, bytes(payload))


def spoil_json(item: Sample, random: Random, others: list[Sample]) -> bytes:
    """Types, widths, lengths and offsets of a FlexBuffer, which stand at its end above all."""
    payload = bytearray(item.payload)
    at, length = random.choice(item.values or [(0, len(payload))])
    for _ in range(random.randint(1, 3)):
        back = random.choice((1, 2, 3, random.randint(1, length))) if length else 1
        place = at + max(length - back, 0)
        payload[place] = random.choice(
            (
                0,
                1,
                2,
                4,
                8,
                255,
                random.randrange(256),
                random.randrange(37) << 2,
                payload[place] ^ 1,
            )
        )
    return repack(item, bytes(payload))


def bomb(item: Sample, random: Random, others: list[Sample]) -> bytes:
    """Little that claims or unfolds to much."""
    size = random.choice((2**20, 2**25, 2**26 - 8, 2**26 + 8, 2**27))
    head = item.payload if random.random() < 0.5 else b""
    compressor = zstandard.ZstdCompressor(level=1, write_content_size=random.random() < 0.5)
    frame = compressor.compress(head + bytes(size))
    if random.random() < 0.3:
        # A frame header with a content size of eight bytes, whatever follows.
        claim = random.choice((2**31 - 1, 2**31 + 1, 2**40, 2**63))
        frame = b"\x28\xb5\x2f\xfd\xe0" + claim.to_bytes(8, "little") + frame[6:]
    return item.data[: header.SIZE] + frame


type Mutation = Callable[[Sample, Random, list[Sample]], bytes]
MUTATIONS: dict[Mutation, int] = {
    truncate: 4,
    flip_bits: 6,
    change_header: 4,
    append_garbage: 1,
    flip_payload: 20,
    steer: 40,
    copy_place: 10,
    splice: 10,
    cut_payload: 4,
    other_type: 2,
    spoil_text: 6,
    spoil_json: 8,
}
RARE_BOMBS = 0.004
"""A bomb takes a hundred times as long as the others."""
