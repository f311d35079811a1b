"""From the bytes of many chunks to their values, by the array's own codecs."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import zstandard
from zarr.codecs import BytesCodec, ShardingCodec, ZstdCodec

from icefloe.spark.encoding import ChunkCodecs

if TYPE_CHECKING:
    from collections.abc import Sequence

    import zarr
    from numpy.typing import NDArray


class ChunkDecoder(ChunkCodecs):
    """Decodes chunks of one array that have one shape, many at a time.

    With the codecs that zarr chooses itself (bytes, zstd), chunks are decompressed one after the
    other, and all are then looked at as one array. Other codecs are called for each chunk.
    """

    def __init__(self, array: zarr.Array[Any]) -> None:
        super().__init__(array)
        codecs = [*self._pipeline]
        kinds = [type(codec) for codec in codecs]
        calls = self._calls("_decode_sync")
        self._backwards = [*reversed(calls or [])]
        self._bytes: Any = codecs[0] if kinds in ([BytesCodec], [BytesCodec, ZstdCodec]) else None
        self._zstd = zstandard.ZstdDecompressor() if ZstdCodec in kinds else None
        self.is_capable = (
            calls is not None and ShardingCodec not in kinds and self.dtype.kind not in "OT"
        )
        """Whether `decode` can be used: shards are read in parts, and some codecs are awaited."""

    def decode(self, parts: Sequence[memoryview], shape: tuple[int, ...]) -> NDArray[Any]:
        """(n, *shape) values of n chunks. Raises whatever the codecs do."""
        if self._bytes is not None:
            return self._decode_plain(parts, shape)
        values = np.empty((len(parts), *shape), self.dtype)
        for row, part in enumerate(parts):
            values[row] = self._decode_one(part, shape)
        return values

    def _decode_plain(self, parts: Sequence[memoryview], shape: tuple[int, ...]) -> NDArray[Any]:
        plain: Sequence[bytes | memoryview] = parts
        size = prod(shape) * self.dtype.itemsize
        if self._zstd is not None:
            decompress = self._zstd.decompress
            plain = [decompress(part, size, allow_extra_data=False) for part in parts]
        if any(len(item) != size for item in plain):
            raise ValueError(f"a chunk has not the {size} bytes of shape {shape}")
        buffer = self._prototype.buffer.from_bytes(b"".join(plain))
        spec = self._spec((len(parts), *shape))
        values: NDArray[Any] = self._bytes._decode_sync(buffer, spec).as_numpy_array()
        return values

    def _decode_one(self, part: memoryview, shape: tuple[int, ...]) -> NDArray[Any]:
        data: Any = self._prototype.buffer.from_bytes(bytes(part))
        for call, spec in zip(self._backwards, reversed(self._specs_of(shape)), strict=True):
            data = call(data, spec)
        values: NDArray[Any] = data.as_numpy_array()
        return values
