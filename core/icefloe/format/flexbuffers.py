"""FlexBuffers, for the JSON values of metadata and configuration.

`encode` gives the very bytes the reference implementation writes for the same value; `decode` reads
whatever another writer may use for JSON. The layout is that of https://flatbuffers.dev/flexbuffers:
children come before parents, a parent holds backward offsets, and the last bytes name the root.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from icefloe.errors import FormatError, InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

type JSON = bool | int | float | str | list[JSON] | dict[str, JSON] | None

MAX_DEPTH = 128
"""Lists and objects nest at most this deep, both ways."""

_FLOAT32_MAX = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]


class _Type(IntEnum):
    NULL = 0
    INT = 1
    UINT = 2
    FLOAT = 3
    KEY = 4
    STRING = 5
    INDIRECT_INT = 6
    INDIRECT_UINT = 7
    INDIRECT_FLOAT = 8
    MAP = 9
    VECTOR = 10
    VECTOR_INT = 11
    VECTOR_UINT = 12
    VECTOR_FLOAT = 13
    VECTOR_KEY = 14
    VECTOR_STRING = 15
    VECTOR_INT2 = 16
    VECTOR_FLOAT4 = 24
    BLOB = 25
    BOOL = 26
    VECTOR_BOOL = 36


_INLINE = {_Type.NULL, _Type.INT, _Type.UINT, _Type.FLOAT, _Type.BOOL}
_NUMBERS = {_Type.INT: "i", _Type.UINT: "u", _Type.FLOAT: "f"}


def encode(value: object, *, name: str = "metadata") -> bytes:
    """Encode None, bool, int, float, str, and lists (or tuples) and dicts of them.

    Numbers may be numpy's.

    Raises:
        InvalidInputError: something in `value` has no JSON form, an integer takes over 64 bits,
            a key has a NUL, or it nests too deep; the message has the place, as `metadata.a[3].b`.
    """
    writer = _Writer(name)
    return writer.finish(writer.push(value))


def decode(data: bytes | memoryview, *, name: str = "metadata") -> JSON:
    """Decode a JSON value; numbers that JSON lacks (NaN, infinities) read as None.

    Takes time and memory in proportion to `data`, whatever the bytes.

    Raises:
        FormatError: the bytes are not FlexBuffers, or hold what JSON cannot.
    """
    return _Reader(bytes(data), name).root()


@dataclass(frozen=True, slots=True)
class _Slot:
    """A value about to be stored in its parent.

    Attributes:
        kind: Its type.
        width: Log2 of the bytes an inline value needs, or of the width inside what is referred to.
        value: The number itself, or the address referred to.
    """

    kind: int
    width: int
    value: float


@dataclass(slots=True)
class _Writer:
    name: str
    path: list[str] = field(default_factory=list)
    buffer: bytearray = field(default_factory=bytearray)
    keys: dict[bytes, _Slot] = field(default_factory=dict)

    def finish(self, root: _Slot) -> bytes:
        width = self._width_at(root, 0)
        self._align(width)
        self._store(root, width)
        self.buffer += bytes([_packed_type(root, width), 1 << width])
        return bytes(self.buffer)

    def push(self, value: object) -> _Slot:
        """Write what `value` refers to, and return what its parent has to store."""
        match value:
            case None:
                return _Slot(_Type.NULL, 0, 0)
            case bool() | np.bool():
                return _Slot(_Type.BOOL, 0, int(value))
            case int() | np.integer():
                return self._int(int(value))
            case float() | np.floating():
                return self._float(float(value))
            case str():
                return self._string(value)
            case list() | tuple():
                return self._list(value)
            case dict():
                return self._dict(value)
        raise self._invalid(f"{type(value).__name__} has no JSON form")

    def _int(self, value: int) -> _Slot:
        if not -(2**63) <= value < 2**64:
            raise self._invalid(f"{value:#x} takes more than 64 bits")
        if value < 0:
            return _Slot(_Type.INT, _uint_width(~value << 1), value)
        return _Slot(_Type.UINT, _uint_width(value), value)

    def _float(self, value: float) -> _Slot:
        # The reference would silently write null.
        if not math.isfinite(value):
            raise self._invalid(f"{value} has no JSON form")
        short = abs(value) <= _FLOAT32_MAX and struct.unpack("<f", struct.pack("<f", value)) == (
            value,
        )
        return _Slot(_Type.FLOAT, 2 if short else 3, value)

    def _text(self, value: str) -> bytes:
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise self._invalid("the text is not valid Unicode") from None

    def _string(self, value: str) -> _Slot:
        text = self._text(value)
        width = _uint_width(len(text))
        self._align(width)
        self._store_uint(len(text), width)
        address = len(self.buffer)
        self.buffer += text
        self.buffer.append(0)
        return _Slot(_Type.STRING, width, address)

    def _key(self, key: str) -> _Slot:
        text = self._text(key)
        if b"\0" in text:
            raise self._invalid(f"the key {key!r} has a NUL")
        if text not in self.keys:
            self.keys[text] = _Slot(_Type.KEY, 0, len(self.buffer))
            self.buffer += text
            self.buffer.append(0)
        return self.keys[text]

    def _child(self, place: str, value: object) -> _Slot:
        if len(self.path) == MAX_DEPTH:
            raise self._invalid(f"it nests deeper than {MAX_DEPTH}")
        self.path.append(place)
        slot = self.push(value)
        self.path.pop()
        return slot

    def _list(self, values: Sequence[object]) -> _Slot:
        slots = [self._child(f"[{index}]", value) for index, value in enumerate(values)]
        return self._vector(slots, _vector_type(slots))

    def _dict(self, values: dict[str, object]) -> _Slot:
        for key in values:
            if not isinstance(key, str):
                raise self._invalid(f"the key {key!r} is not text")
        # Code points and UTF-8 bytes sort alike.
        pairs = [(self._key(key), self._child(f".{key}", values[key])) for key in sorted(values)]
        keys = self._vector([key for key, _ in pairs], _Type.VECTOR_KEY)
        return self._vector([value for _, value in pairs], _Type.MAP, keys)

    def _vector(self, slots: list[_Slot], kind: int, keys: _Slot | None = None) -> _Slot:
        fixed = _is_fixed(kind)
        prefix = 0 if fixed else 1 if keys is None else 3
        width = 0 if fixed else _uint_width(len(slots))
        if keys is not None:
            width = max(width, self._width_at(keys, 0))
        for index, slot in enumerate(slots, prefix):
            width = max(width, self._width_at(slot, index))
        self._align(width)
        if keys is not None:
            self._store(keys, width)
            self._store_uint(1 << keys.width, width)
        if not fixed:
            self._store_uint(len(slots), width)
        address = len(self.buffer)
        for slot in slots:
            self._store(slot, width)
        if kind in (_Type.VECTOR, _Type.MAP):
            self.buffer += bytes(_packed_type(slot, width) for slot in slots)
        return _Slot(kind, width, address)

    def _width_at(self, slot: _Slot, index: int) -> int:
        """Width that `slot` needs as item `index` of a vector that starts at the end of the buffer.

        An offset grows with the width of the items before it, so each width is tried.
        """
        if slot.kind in _INLINE:
            return slot.width
        width = 0
        while True:
            size = 1 << width
            start = -(-len(self.buffer) // size) * size
            if _uint_width(start + index * size - int(slot.value)) <= width:
                return width
            width += 1

    def _align(self, width: int) -> None:
        self.buffer += bytes(-len(self.buffer) % (1 << width))

    def _store(self, slot: _Slot, width: int) -> None:
        if slot.kind == _Type.FLOAT:
            self.buffer += struct.pack("<f" if width == 2 else "<d", slot.value)
        elif slot.kind == _Type.INT:
            self.buffer += int(slot.value).to_bytes(1 << width, "little", signed=True)
        elif slot.kind in _INLINE:
            self._store_uint(int(slot.value), width)
        else:
            self._store_uint(len(self.buffer) - int(slot.value), width)

    def _store_uint(self, value: int, width: int) -> None:
        self.buffer += value.to_bytes(1 << width, "little")

    def _invalid(self, reason: str) -> InvalidInputError:
        return InvalidInputError(f"{self.name}{''.join(self.path)}: {reason}", kind="bad-metadata")


def _uint_width(value: int) -> int:
    return 0 if value < 1 << 8 else 1 if value < 1 << 16 else 2 if value < 1 << 32 else 3


def _packed_type(slot: _Slot, width: int) -> int:
    return slot.kind << 2 | (max(slot.width, width) if slot.kind in _INLINE else slot.width)


def _vector_type(slots: list[_Slot]) -> int:
    kinds = {slot.kind for slot in slots}
    if kinds == {_Type.BOOL}:
        return _Type.VECTOR_BOOL
    if len(kinds) != 1 or not kinds <= _NUMBERS.keys():
        return _Type.VECTOR
    (kind,) = kinds
    if 2 <= len(slots) <= 4:
        return _Type.VECTOR_INT2 + 3 * (len(slots) - 2) + kind - _Type.INT
    return _Type.VECTOR + kind


def _is_fixed(kind: int) -> bool:
    return _Type.VECTOR_INT2 <= kind <= _Type.VECTOR_FLOAT4


class _Reader:
    """Decodes one buffer, checking every read against its bounds.

    Nothing in a FlexBuffer stops two parents from sharing a child, and sixty vectors of two such
    offsets each unfold to 2**60 values. Writers share keys and strings only, so all items and all
    distinct text of an honest buffer fit in its length: `budget` counts them down from there.
    """

    def __init__(self, data: bytes, name: str) -> None:
        self.data = data
        self.name = name
        self.budget = len(data)
        self.texts: dict[tuple[int, int], str] = {}

    def root(self) -> JSON:
        if len(self.data) < 3:
            raise self._malformed(f"{len(self.data)} bytes are too short")
        packed, size = self.data[-2:]
        if size not in (1, 2, 4, 8):
            raise self._malformed(f"the root has width {size}")
        # Nothing may reach into the two bytes that describe the root.
        self.data = self.data[:-2]
        return self._value(len(self.data) - size, size, packed, 0)

    def _value(self, position: int, size: int, packed: int, depth: int) -> JSON:
        """Return the value stored at `position`, in `size` bytes, of the type `packed` tells."""
        kind = packed >> 2
        if kind in _INLINE:
            return self._inline(position, size, kind)
        address, width = self._follow(position, size), 1 << (packed & 3)
        match kind:
            case _Type.KEY:
                return self._key(address)
            case _Type.STRING:
                return self._string(address, width)
            case _Type.INDIRECT_INT | _Type.INDIRECT_UINT | _Type.INDIRECT_FLOAT:
                return self._inline(address, width, kind - _Type.INDIRECT_INT + _Type.INT)
        if depth == MAX_DEPTH:
            raise self._malformed(f"it nests deeper than {MAX_DEPTH}")
        return self._container(address, width, kind, depth + 1)

    def _inline(self, position: int, size: int, kind: int) -> JSON:
        if kind == _Type.NULL:
            return None
        if kind == _Type.BOOL:
            return self._uint(position, size) != 0
        return self._numbers(position, size, kind, 1)[0]

    def _container(self, address: int, size: int, kind: int, depth: int) -> JSON:
        if kind == _Type.MAP:
            return self._map(address, size, depth)
        if kind == _Type.VECTOR:
            return self._items(address, size, self._length(address, size), depth)
        if _is_fixed(kind):
            length, number = divmod(kind - _Type.VECTOR_INT2, 3)
            self._spend(length + 2)
            return self._numbers(address, size, number + _Type.INT, length + 2)
        if _Type.VECTOR_INT <= kind <= _Type.VECTOR_STRING or kind == _Type.VECTOR_BOOL:
            return self._typed(address, size, kind)
        raise self._malformed(f"type {kind} has no JSON form")

    def _typed(self, address: int, size: int, kind: int) -> list[JSON]:
        count = self._length(address, size)
        if kind == _Type.VECTOR_BOOL:
            return [number != 0 for number in self._numbers(address, size, _Type.UINT, count)]
        if kind - _Type.VECTOR in _NUMBERS:
            return self._numbers(address, size, kind - _Type.VECTOR, count)
        places = [
            self._follow(position, size)
            for position in range(address, address + count * size, size)
        ]
        if kind == _Type.VECTOR_KEY:
            return [self._key(place) for place in places]
        # Deprecated because it cannot say the width of the lengths, which is therefore one byte.
        return [self._string(place, 1) for place in places]

    def _map(self, address: int, size: int, depth: int) -> dict[str, JSON]:
        count = self._length(address, size)
        keys = self._follow(address - 3 * size, size)
        key_size = self._uint(address - 2 * size, size)
        if key_size not in (1, 2, 4, 8):
            raise self._malformed(f"the keys of a map have width {key_size}")
        if self._uint(keys - key_size, key_size) != count:
            raise self._malformed("a map has more or fewer keys than values")
        names = [self._key(self._follow(keys + i * key_size, key_size)) for i in range(count)]
        return dict(zip(names, self._items(address, size, count, depth), strict=True))

    def _items(self, address: int, size: int, count: int, depth: int) -> list[JSON]:
        types = self._slice(address + count * size, count)
        return [
            self._value(address + index * size, size, packed, depth)
            for index, packed in enumerate(types)
        ]

    def _numbers(self, position: int, size: int, kind: int, count: int) -> list[JSON]:
        if kind == _Type.FLOAT and size == 1:
            raise self._malformed("a float has one byte")
        data = self._slice(position, size * count)
        numbers: list[JSON] = np.frombuffer(data, f"<{_NUMBERS[_Type(kind)]}{size}").tolist()
        if kind == _Type.FLOAT:
            return [n if isinstance(n, float) and math.isfinite(n) else None for n in numbers]
        return numbers

    def _length(self, address: int, size: int) -> int:
        count = self._uint(address - size, size)
        self._spend(count)
        return count

    def _follow(self, position: int, size: int) -> int:
        return position - self._uint(position, size)

    def _key(self, address: int) -> str:
        if (text := self.texts.get((address, 0))) is not None:
            return text
        end = self.data.find(b"\0", address) if address >= 0 else -1
        if end < 0:
            raise self._malformed("a key has no end")
        return self._text(address, end - address, 0)

    def _string(self, address: int, size: int) -> str:
        if (text := self.texts.get((address, size))) is not None:
            return text
        return self._text(address, self._uint(address - size, size), size)

    def _text(self, address: int, length: int, size: int) -> str:
        self._spend(length)
        try:
            text = self._slice(address, length).decode()
        except UnicodeDecodeError:
            raise self._malformed("a text is not UTF-8") from None
        self.texts[address, size] = text
        return text

    def _uint(self, position: int, size: int) -> int:
        return int.from_bytes(self._slice(position, size), "little")

    def _slice(self, position: int, length: int) -> bytes:
        if position < 0 or position + length > len(self.data):
            raise self._malformed(f"an offset leads to {position}, out of its bytes")
        return self.data[position : position + length]

    def _spend(self, count: int) -> None:
        self.budget -= count
        if self.budget < 0:
            raise self._malformed("it claims more than its bytes can hold")

    def _malformed(self, reason: str) -> FormatError:
        return FormatError(f"{self.name}: bad FlexBuffers: {reason}", kind="invalid-flexbuffers")
