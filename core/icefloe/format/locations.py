"""Locations of virtual chunks, each a zstd frame of its own under one dictionary per manifest.

A column of a million goes through zstd in one call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
import zstandard

from icefloe.errors import FormatError, InternalError
from icefloe.format.ragged import Ragged, starts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

MAX_LENGTH = 1024
"""The reference reads compressed locations into a buffer of this size: longer ones stay plain."""

MAX_SAMPLES = 100
"""Training looks at no more locations than this, unless told otherwise."""

DICTIONARY_SIZE = 2048
"""Bytes of a dictionary at most, unless told otherwise."""

# What training cannot use: it looks for segments of at least this many bytes.
_SHORT = 8

# Magic, descriptor, one byte of window or size, and a block's header.
_MIN_FRAME = 9
_DICTIONARY_ID_SIZES = np.array([0, 1, 2, 4])


def train(
    locations: Sequence[bytes],
    *,
    level: int = 3,
    max_samples: int = MAX_SAMPLES,
    max_size: int = DICTIONARY_SIZE,
) -> bytes | None:
    """Return a dictionary of at most `max_size` bytes for these, or None if it would not pay.

    Looks at `max_samples` of them, evenly spaced, so that equal input gives equal output.
    """
    samples = list(locations[:: -(-len(locations) // max(max_samples, 1)) or 1])
    if 2 * sum(len(sample) < _SHORT for sample in samples) >= len(samples):
        return None
    size = sum(map(len, samples))
    # zstd learns nothing from fewer bytes than the dictionary takes.
    repeats = max(1, -(-max_size // size))
    try:
        dictionary = zstandard.train_dictionary(max_size, [*samples] * repeats)
    except zstandard.ZstdError:
        return None
    compressor = zstandard.ZstdCompressor(level=level, dict_data=dictionary)
    if sum(len(compressor.compress(sample)) for sample in samples) >= size:
        return None
    return dictionary.as_bytes()


def compress(locations: Ragged, dictionary: bytes, *, level: int = 3, threads: int = 0) -> Ragged:
    """Return the frames of these locations, in order; `threads` is zstandard's, -1 for every core.

    Raises:
        InternalError: a location is absent, empty or over `MAX_LENGTH`; such ones must stay plain.
    """
    if not len(locations):
        return Ragged.of([])
    if locations.length.min() < 1 or locations.length.max() > MAX_LENGTH:
        raise InternalError(f"only locations of 1 to {MAX_LENGTH} bytes can be compressed")
    compressor = zstandard.ZstdCompressor(
        level=level, dict_data=zstandard.ZstdCompressionDict(dictionary)
    )
    return _join(compressor.multi_compress_to_buffer(_segments(locations), threads=threads))


def decompress(
    frames: Ragged,
    dictionary: bytes,
    *,
    name: str = "manifest",
    max_length: int = MAX_LENGTH,
    threads: int = 0,
) -> Ragged:
    """Return the locations of these frames, in order. Pass distinct frames: each costs a decoding.

    Takes at most `max_length` bytes of memory per frame, whatever the frames claim.

    Raises:
        FormatError: a frame is damaged, needs another dictionary, or holds over `max_length` bytes.
    """
    if not len(frames):
        return Ragged.of([])
    if frames.length.min() < _MIN_FRAME:
        raise _malformed(name, f"a frame of {frames.length.min()} bytes is too short")
    segments = _segments(frames)
    sizes = _content_sizes(frames)
    if sizes.max() > max_length:
        raise _malformed(name, f"one of {sizes.max()} bytes is longer than {max_length}")
    try:
        decoder = zstandard.ZstdDecompressor(dict_data=zstandard.ZstdCompressionDict(dictionary))
        if sizes.min() > 0:
            stated = sizes.astype(np.uint64).tobytes()
            return _join(
                decoder.multi_decompress_to_buffer(
                    segments, decompressed_sizes=stated, threads=threads
                )
            )
        return Ragged.of(
            _decompress_one(decoder, frame or b"", name, max_length) for frame in frames.tolist()
        )
    except zstandard.ZstdError as error:
        raise _malformed(name, str(error)) from error


def _decompress_one(
    decoder: zstandard.ZstdDecompressor, frame: bytes, name: str, max_length: int
) -> bytes:
    # The decoder trusts a size in the frame over the limit it is given.
    if zstandard.frame_content_size(frame) > max_length:
        raise _malformed(name, f"one is longer than {max_length} bytes")
    return decoder.decompress(frame, max_output_size=max_length, allow_extra_data=False)


def _content_sizes(frames: Ragged) -> NDArray[np.int64]:
    """Return the size each frame's header states in one or two bytes, or -1.

    Every encoder states sizes up to 64 KiB like that, if it states them at all.
    """
    data, start = frames.data, frames.start
    descriptor = data[start + 4]
    flag = descriptor >> 6
    single = descriptor >> 5 & 1
    position = 6 - single + _DICTIONARY_ID_SIZES[descriptor & 3]
    stated = (position + 2 <= frames.length) & (((flag == 0) & (single == 1)) | (flag == 1))
    place = np.where(stated, start + position, 0)
    low = data[place].astype(np.int64)
    sizes = np.where(flag == 0, low, 256 + low + (data[place + 1].astype(np.int64) << 8))
    return np.where(stated, sizes, -1)


def _segments(column: Ragged) -> zstandard.BufferWithSegments:
    start, length = column.start, column.length
    # zstandard adds the two as unsigned integers, which may wrap, and then reads out of bounds.
    if start.min() < 0 or length.min() < 0 or (start > len(column.data) - length).any():
        raise InternalError("locations reach outside of their data")
    pairs = np.stack([start, length], axis=1).astype(np.uint64)
    return zstandard.BufferWithSegments(np.ascontiguousarray(column.data).data, pairs.tobytes())


def _join(parts: zstandard.BufferWithSegmentsCollection) -> Ragged:
    # A collection iterates over its segments, which zstandard's type stubs do not say.
    segments = cast("Iterable[bytes]", parts)
    length = np.fromiter(map(len, segments), dtype=np.int64, count=len(parts))
    return Ragged(np.frombuffer(b"".join(segments), dtype=np.uint8), starts(length), length)


def _malformed(name: str, reason: str) -> FormatError:
    return FormatError(f"{name}: bad compressed location: {reason}", kind="decompression")
