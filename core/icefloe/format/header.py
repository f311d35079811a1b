"""The envelope of every metadata file: 39 bytes of header, then the payload in zstd."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import zstandard

from icefloe.errors import FormatError, InvalidInputError
from icefloe.version import __version__

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAGIC = "ICE🧊CHUNK".encode()
IMPLEMENTATION = f"icefloe-{__version__}"
SPEC_VERSIONS = (1, 2)
NO_COMPRESSION = 0
ZSTD = 1

_LAYOUT = struct.Struct("<12s24sBBB")
SIZE = _LAYOUT.size
"""Bytes of the header, ahead of the payload."""

MAX_SIZE = 2**31
"""FlatBuffers offsets are 32 bits wide and the reference reads up to this."""

# What a file may inflate to, however small it is, and beyond that per compressed byte. zstd can
# reach 32,768 to 1 on constant bytes, and 64 KiB of that would fill 2 GiB. Large metadata files
# consist of ids and coordinates and stay below 100 to 1, even with a constant inline chunk of 512
# bytes in every ref (61 to 1); what compresses a thousandfold (a message of one letter, long inline
# chunks of zeros) is small, and the floor lets it through.
_PLAUSIBLE_SIZE = 2**27
_PLAUSIBLE_RATIO = 1000

# The reference decoder's own limit; zstd's highest level stays within it.
_MAX_WINDOW = 2**27

# A frame of unknown size is decoded this much at a time: no slice can inflate past 32 MiB before
# its output is counted.
_SLICE = 2**10


class FileType(IntEnum):
    SNAPSHOT = 1
    MANIFEST = 2
    ATTRIBUTES = 3
    TRANSACTION_LOG = 4
    CHUNK = 5
    REPO_INFO = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a metadata file says about itself.

    Attributes:
        implementation: Name and version of the writer, as far as it is text; never rely on it.
        spec_version: 1 or 2; it chooses how the payload is read, whatever the repository's version.
        file_type: The kind of payload.
    """

    implementation: str
    spec_version: int
    file_type: FileType


def pack(
    payload: bytes | bytearray | memoryview | NDArray[Any],
    file_type: FileType,
    *,
    level: int = 3,
    spec_version: int = 2,
) -> bytes:
    """Wrap a payload: header, then one zstd frame with its content size.

    Raises:
        InvalidInputError: `unpack` would refuse the file for its size.
    """
    header = _LAYOUT.pack(
        MAGIC, IMPLEMENTATION.encode()[:24].ljust(24), spec_version, file_type, ZSTD
    )
    view = memoryview(payload)
    # A compressor serves one thread; making one costs microseconds.
    frame = zstandard.ZstdCompressor(level=level).compress(view)
    limit = _size_limit(len(frame))
    if view.nbytes > limit:
        raise InvalidInputError(
            f"a {file_type.name} file of {view.nbytes} bytes that compress to {len(frame)} would "
            f"be refused by readers, who take at most {limit} for plausible: "
            "shorten what repeats in it (messages, metadata, attributes, inline chunks)",
            kind="implausible-size",
        )
    return header + frame


def unpack(
    data: bytes | memoryview, expected: FileType, *, name: str, max_size: int = MAX_SIZE
) -> tuple[Header, bytes]:
    """Return the header and the decompressed payload of the file called `name`.

    Never takes memory out of proportion to the file, whatever size the file claims.

    Raises:
        FormatError: the file is not of the `expected` type, not in a known spec version, damaged,
            or would inflate past `max_size` bytes or past what is plausible for its length.
    """
    header, compression = _read_header(data, expected, name)
    frames = memoryview(data)[SIZE:]
    limit = min(max_size, _size_limit(len(frames)))
    if compression == NO_COMPRESSION:
        # The spec has it, no writer of ours or the official one does it.
        if len(frames) > limit:
            raise _too_large(name, limit)
        return header, bytes(frames)
    try:
        return header, _decompress(frames, limit, name)
    except zstandard.ZstdError as error:
        raise FormatError(f"{name}: bad zstd payload: {error}", kind="decompression") from error


def _size_limit(compressed: int) -> int:
    """The largest payload that is plausible behind this many bytes; the same for both ways."""
    return min(MAX_SIZE, max(_PLAUSIBLE_SIZE, _PLAUSIBLE_RATIO * compressed))


def _read_header(data: bytes | memoryview, expected: FileType, name: str) -> tuple[Header, int]:
    if len(data) < SIZE:
        raise FormatError(f"{name}: {len(data)} bytes are too short for a header of {SIZE}")
    magic, implementation, spec_version, file_type, compression = _LAYOUT.unpack_from(data)
    if magic != MAGIC:
        raise FormatError(f"{name}: not an Icechunk metadata file: it starts with {magic!r}")
    if spec_version not in SPEC_VERSIONS:
        raise FormatError(
            f"{name}: spec version {spec_version} is not supported, only 1 and 2 are",
            kind="unsupported-spec-version",
        )
    if file_type != expected:
        known = FileType(file_type).name if file_type in set(FileType) else "unknown"
        raise FormatError(f"{name}: expected type {expected.name}, got {file_type} ({known})")
    if compression not in (NO_COMPRESSION, ZSTD):
        raise FormatError(
            f"{name}: compression {compression} is not known, only none (0) and zstd (1) are"
        )
    found = Header(
        implementation=implementation.decode("utf-8", "replace").rstrip(" \0"),
        spec_version=spec_version,
        file_type=expected,
    )
    return found, compression


def _decompress(frames: memoryview, limit: int, name: str) -> bytes:
    size = zstandard.get_frame_parameters(frames).content_size
    if size == zstandard.CONTENTSIZE_UNKNOWN:
        return _decompress_slices(frames, limit, name)
    if size > limit:
        raise _too_large(name, limit)
    return zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).decompress(
        frames, allow_extra_data=False
    )


def _decompress_slices(frames: memoryview, limit: int, name: str) -> bytes:
    """Decode a frame that does not say its size, as the writers of spec version 1 left it."""
    decoder = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).decompressobj()
    parts = []
    total = 0
    for start in range(0, len(frames), _SLICE):
        if decoder.eof:
            raise FormatError(f"{name}: data follows the payload")
        part = decoder.decompress(frames[start : start + _SLICE])
        total += len(part)
        if total > limit:
            raise _too_large(name, limit)
        parts.append(part)
    if not decoder.eof:
        raise FormatError(f"{name}: the payload is cut short")
    if decoder.unused_data:
        raise FormatError(f"{name}: data follows the payload")
    return b"".join(parts)


def _too_large(name: str, limit: int) -> FormatError:
    return FormatError(
        f"{name}: the payload would inflate past {limit} bytes, which is implausible for this file",
        kind="implausible-size",
    )
