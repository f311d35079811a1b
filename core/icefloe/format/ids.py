"""Object ids: random bytes, written as Crockford base 32 in file names.

One id is a value (`ObjectId` and its kinds); a million ids are an (n, size) array of uint8, which
`encode_ids` and `decode_ids` turn into file names and back without a Python loop.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from icefloe.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

ALPHABET = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ"

_INVALID = 255
_LETTERS = np.frombuffer(ALPHABET, dtype=np.uint8)
_VALUES = np.full(256, _INVALID, dtype=np.uint8)
_VALUES[_LETTERS] = np.arange(32)
# Two letters at a time, as they lie in memory, indexed by their ten bits.
_PAIRS = np.stack([np.repeat(_LETTERS, 32), np.tile(_LETTERS, 32)], axis=1).view(np.uint16).ravel()


@dataclass(frozen=True, slots=True, order=True)
class ObjectId:
    """Raw id bytes, in byte order; `str` gives the file name. Ids of two kinds are never equal."""

    SIZE: ClassVar[int] = 12
    raw: bytes

    def __post_init__(self) -> None:
        if not isinstance(self.raw, bytes) or len(self.raw) != self.SIZE:
            raise InvalidInputError(
                f"{type(self).__name__} takes {self.SIZE} bytes, got {self.raw!r}"
            )

    def __str__(self) -> str:
        return _encode(self.raw)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self})"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an id back from its file name.

        Strict, because ids become keys and one id must have one key: no lower case, no I, L, O
        or U, no padding bits.

        Raises:
            InvalidInputError: `text` is not what `str` gives for some id of this kind.
        """
        if isinstance(text, cls):
            return text
        if not isinstance(text, str):
            raise InvalidInputError(
                f"{ascii(text)[:80]} is not a {cls.__name__}: pass its text as a str"
            )
        try:
            return cls(_decode(text, cls.SIZE))
        except ValueError as error:
            raise InvalidInputError(f"{text!r} is not a {cls.__name__}: {error}") from None

    @classmethod
    def random(cls, source: Callable[[int], bytes] = os.urandom) -> Self:
        return cls(source(cls.SIZE))


class SnapshotId(ObjectId):
    """Names a snapshot and its transaction log."""

    __slots__ = ()


class ManifestId(ObjectId):
    """Names a manifest."""

    __slots__ = ()


class ChunkId(ObjectId):
    """Names a chunk object."""

    __slots__ = ()


class NodeId(ObjectId):
    """Names a node, within one repository; it survives moves and metadata updates."""

    __slots__ = ()
    SIZE = 8


INITIAL_SNAPSHOT_ID = SnapshotId(bytes.fromhex("0b1cc8d6787580f0e33a6534"))
"""The first snapshot of every repository: `1CECHNKREP0F1RSTCMT0`."""


def text_length(size: int) -> int:
    """Letters of an id of `size` bytes: 20 for 12, 13 for 8."""
    return -(-size * 8 // 5)


def _encode(raw: bytes) -> str:
    length = text_length(len(raw))
    bits = int.from_bytes(raw) << (length * 5 - len(raw) * 8)
    return bytes(ALPHABET[bits >> shift & 31] for shift in range(length * 5 - 5, -1, -5)).decode()


def _decode(text: str, size: int) -> bytes:
    length = text_length(size)
    if len(text) != length:
        raise ValueError(f"it takes {length} letters")
    bits = 0
    for letter in text:
        value = ALPHABET.find(letter.encode("utf-8", "replace"))
        if value < 0:
            raise ValueError(f"{letter!r} is not in the alphabet {ALPHABET.decode()}")
        bits = bits << 5 | value
    padding = length * 5 - size * 8
    if bits & ((1 << padding) - 1):
        raise ValueError("its padding bits are not zero")
    return (bits >> padding).to_bytes(size)


def random_ids(
    count: int, size: int = ObjectId.SIZE, *, source: Callable[[int], bytes] = os.urandom
) -> NDArray[np.uint8]:
    """Return `count` random ids as a (count, size) array, writable."""
    return np.frombuffer(source(count * size), dtype=np.uint8).reshape(count, size).copy()


def as_keys(raw: NDArray[np.uint8]) -> NDArray[np.bytes_]:
    """View (n, size) ids as n fixed-width byte strings, to sort, search and deduplicate them.

    They compare in byte order. numpy ignores trailing NULs when it compares such strings, which is
    harmless here: all have one width, and padding with NULs up to it is exactly how ids that end in
    NUL compare. A single item taken out does lose its trailing NULs, so turn ids back into bytes
    through `raw`, never through `bytes(keys[i])`.
    """
    return np.ascontiguousarray(raw).view(f"S{raw.shape[1]}").reshape(len(raw))


def encode_ids(raw: NDArray[np.uint8]) -> NDArray[np.bytes_]:
    """Return the file names of (n, size) ids, as n byte strings of `text_length(size)` letters."""
    count, size = raw.shape
    length = text_length(size)
    columns = np.zeros((size + 1, count), dtype=np.uint16)
    columns[:size] = raw.T
    pairs = np.empty((count, (length + 1) // 2), dtype=np.uint16)
    for pair in range(pairs.shape[1]):
        byte, offset = divmod(pair * 10, 8)
        bits = (columns[byte] << 8 | columns[byte + 1]) >> (6 - offset)
        pairs[:, pair] = _PAIRS[bits & 1023]
    letters = np.ascontiguousarray(pairs.view(np.uint8)[:, :length])
    return letters.view(f"S{length}").reshape(count)


def decode_ids(
    texts: NDArray[np.bytes_] | Sequence[str] | Sequence[bytes], size: int = ObjectId.SIZE
) -> NDArray[np.uint8]:
    """Return the (n, size) ids of n file names; as strict as `ObjectId.parse`.

    Raises:
        InvalidInputError: some name is no id; the message has the first such name.
    """
    length = text_length(size)
    letters = _letters(texts, length)
    columns = np.zeros((length + 1, len(letters)), dtype=np.uint16)
    columns[:length] = _VALUES[letters].T
    bad = (columns == _INVALID).any(axis=0)
    bad |= (columns[length - 1] & ((1 << (length * 5 - size * 8)) - 1)) != 0
    if bad.any():
        text = letters[int(bad.argmax())].tobytes().decode("ascii", "backslashreplace")
        raise InvalidInputError(f"{text!r} is not the base 32 of {size} bytes")
    raw = np.empty((len(letters), size), dtype=np.uint8)
    for byte in range(size):
        letter, offset = divmod(byte * 8, 5)
        bits = columns[letter] << 10 | columns[letter + 1] << 5 | columns[letter + 2]
        raw[:, byte] = bits >> (7 - offset) & 255
    return raw


def _letters(
    texts: NDArray[np.bytes_] | Sequence[str] | Sequence[bytes], length: int
) -> NDArray[np.uint8]:
    """The texts as an (n, length) array of ASCII codes."""
    if not len(texts):
        return np.empty((0, length), dtype=np.uint8)
    try:
        column = np.asarray(texts, dtype=np.bytes_)
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"{error.object!r} is not an id: it is not ASCII") from None
    if column.itemsize < length:
        column = column.astype(f"S{length}")
    if column.itemsize > length:
        lengths = np.strings.str_len(column)
        if (lengths > length).any():
            text = bytes(column[int(lengths.argmax())]).decode("ascii", "backslashreplace")
            raise InvalidInputError(f"{text!r} is not an id: it takes {length} letters")
        column = column.astype(f"S{length}")
    return np.ascontiguousarray(column).view(np.uint8).reshape(len(column), length)
